//! A parker, a finalizer, a claim, a release, a reaper and a purge on the rows of one aggregate at the same moment.

use ordered_outbox::store::{Finalize, Finalized, Release};
use sqlx::Connection as _;

use crate::statement::{PURGE, Statement, claimed_ids, only_ids, rows_parked};
use crate::support::{Postgres, execute, expire_leases, ids, rows, seed};
use crate::{claim, claim_runs, claimed, connect, done, finalize, kill_heads, outbox, park, parked, sweep};

const NONE: [i64; 0] = [];

#[tokio::test]
async fn a_finalize_is_busy_while_a_parker_parks_the_next_row_and_then_makes_that_row_ready() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        let mut parker = connect(&database).await;
        let mut parking = parker.begin().await.unwrap();
        assert_eq!(rows_parked(&Statement::park().run(&mut parking).await), 1);
        let a1 = &claim(&store).await[0];
        assert_eq!(finalize(&store, done(a1)).await, Finalized::Busy);
        assert_eq!(rows(&store).await[0].1, "processing", "it is not written without the row behind it");
        parking.commit().await.unwrap();
        assert_eq!((parked(&store).await, a1.id), (vec![2], 1));
        assert_eq!(finalize(&store, done(a1)).await, Finalized::Finalized);
        assert_eq!((parked(&store).await, sweep(&store).await), (vec![], vec![]));
        assert_eq!(claimed(&store).await, [2]);
    }
}

#[tokio::test]
async fn a_parker_passes_over_a_row_that_a_finalize_is_making_ready() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        // it sees a1 pending
        let parker = Statement::park().hold_up(&database, &store).await;
        let a1 = &claim(&store).await[0];
        let mut finalizer = connect(&database).await;
        let mut finalizing = finalizer.begin().await.unwrap();
        assert_eq!(only_ids(&Statement::done(a1).run(&mut finalizing).await), [1]);
        assert_eq!(rows_parked(&parker.go_on().await), 0);
        finalizing.commit().await.unwrap();
        assert_eq!((parked(&store).await, claimed(&store).await), (vec![], vec![2]));
    }
}

/// The parker gets the lock, and sees by the row's version that it was made ready meanwhile.
#[tokio::test]
async fn a_parker_that_was_held_up_after_its_snapshot_leaves_a_row_that_was_made_ready_meanwhile() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a", "b", "b", "b"]).await;
        let parker = Statement::park().hold_up(&database, &store).await;
        for message in claim(&store).await {
            assert_eq!(finalize(&store, done(&message)).await, Finalized::Finalized);
        }
        assert_eq!(rows_parked(&parker.go_on().await), 1);
        assert_eq!(parked(&store).await, [5], "b5 was and is behind b4; a2 and b4 were made ready");
        assert_eq!(claimed(&store).await, [2, 4]);
    }
}

#[tokio::test]
async fn a_parker_that_was_held_up_while_a_whole_run_was_claimed_and_finalized_strands_nothing() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        seed(&store, &[("a", "e"); 3]).await;
        execute(&store, "UPDATE outbox SET available_at = now() + interval '1 hour' WHERE id = 4").await;
        let parker = Statement::park().hold_up(&database, &store).await;
        let run = claim_runs(&store).await;
        assert_eq!(ids(&run), [1, 2, 3]);
        let in_lane = |message| Finalize { ends_lane: false, ..done(message) };
        let verdicts = [in_lane(&run[0]), in_lane(&run[1]), done(&run[2])];
        assert_eq!(store.finalize(&verdicts).await.unwrap(), [Finalized::Finalized; 3]);
        assert_eq!(rows_parked(&parker.go_on().await), 1);
        assert_eq!(parked(&store).await, [5], "behind a4, which is not due yet");
        assert_eq!(sweep(&store).await, NONE);
        execute(&store, "UPDATE outbox SET available_at = now() WHERE id = 4").await;
        assert_eq!(crate::deliver(&store).await, [4, 5]);
    }
}

/// Its snapshot was taken before the next row was there, so it cannot unpark it: it must not be parked.
#[tokio::test]
async fn a_row_that_commits_while_a_finalize_is_on_its_way_is_not_parked_behind_the_row_that_is_processing() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a"]).await;
        let a1 = &claim(&store).await[0];
        let finalizer = Statement::done(a1).hold_up(&database, &store).await;
        seed(&store, &[("a", "e")]).await;
        assert_eq!(park(&store).await, 0);
        assert_eq!(only_ids(&finalizer.go_on().await), [1]);
        assert_eq!((parked(&store).await, claimed(&store).await), (vec![], vec![2]));
    }
}

/// Why: the same with a parker that does park behind a row that is processing.
#[tokio::test]
async fn parking_behind_a_row_that_is_processing_would_strand_the_next_one() {
    let (database, store) = outbox(Postgres::Latest, &["a"]).await;
    let a1 = &claim(&store).await[0];
    let finalizer = Statement::done(a1).hold_up(&database, &store).await;
    seed(&store, &[("a", "e")]).await;
    let careless = Statement::park()
        .changed("nearest.status IN ('pending', 'dead')", "nearest.status IN ('pending', 'processing', 'dead')")
        .changed("b.status = 'pending' OR", "b.status <> 'dead' OR");
    let mut parker = connect(&database).await;
    assert_eq!(rows_parked(&careless.run(&mut parker).await), 1);
    assert_eq!(only_ids(&finalizer.go_on().await), [1]);
    assert_eq!((parked(&store).await, claimed(&store).await), (vec![2], vec![]));
    assert_eq!((sweep(&store).await, claimed(&store).await), (vec![2], vec![2]));
}

/// Why: the same with a parker that does not look at the version of the row.
#[tokio::test]
async fn parking_a_row_that_was_made_ready_since_the_snapshot_would_strand_it() {
    let (database, store) = outbox(Postgres::Latest, &["a", "a"]).await;
    let careless = Statement::park().changed("AND own.version = b.version", "");
    let parker = careless.hold_up(&database, &store).await;
    let a1 = &claim(&store).await[0];
    assert_eq!(finalize(&store, done(a1)).await, Finalized::Finalized);
    assert_eq!(rows_parked(&parker.go_on().await), 1);
    assert_eq!((claimed(&store).await, sweep(&store).await), (vec![], vec![2]));
}

/// C01: a raw INSERT commits between the two while the parker is held up.
#[tokio::test]
async fn a_row_that_commits_late_in_between_goes_first_and_makes_the_parked_one_ready() {
    let (database, store) = outbox(Postgres::Latest, &["a"]).await;
    let mut producer = connect(&database).await;
    let mut late = producer.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'e', '1')",
    )
    .execute(&mut *late)
    .await
    .unwrap();
    seed(&store, &[("a", "e")]).await;
    let parker = Statement::park().hold_up(&database, &store).await;
    late.commit().await.unwrap();
    let a1 = &claim(&store).await[0];
    assert_eq!(finalize(&store, done(a1)).await, Finalized::Finalized);
    assert_eq!(rows_parked(&parker.go_on().await), 1);
    assert_eq!((parked(&store).await, sweep(&store).await), (vec![3], vec![]), "a3 waits behind a2 now");
    assert_eq!(crate::deliver(&store).await, [2, 3]);
}

#[tokio::test]
async fn a_claim_and_a_parker_share_no_row_whoever_comes_first() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a", "a"]).await;
        let mut first = connect(&database).await;
        let mut parking = first.begin().await.unwrap();
        assert_eq!(rows_parked(&Statement::park().run(&mut parking).await), 2);
        let run = claim_runs(&store).await;
        assert_eq!(ids(&run), [1], "a2 is locked, and a3 behind it");
        parking.commit().await.unwrap();
        assert_eq!(
            store.release(&[crate::support::untried(1, run[0].lease_version)]).await.unwrap(),
            [Finalized::Finalized]
        );
        execute(&store, "UPDATE outbox SET parked = false").await;

        let mut claiming = first.begin().await.unwrap();
        assert_eq!(claimed_ids(&Statement::claim().run(&mut claiming).await), [1, 2, 3]);
        assert_eq!(park(&store).await, 0);
        claiming.commit().await.unwrap();
        assert_eq!(park(&store).await, 0);
    }
}

/// A claim takes parked rows along behind their head; they are parked no more when they are handed back.
#[tokio::test]
async fn a_parked_row_that_was_claimed_in_a_run_and_handed_back_is_not_parked() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "a", "a"]).await;
    assert_eq!(park(&store).await, 2);
    let run = claim_runs(&store).await;
    assert_eq!(ids(&run), [1, 2, 3]);
    let untried = [Release::new(&run[1]), Release::new(&run[2])];
    assert_eq!(store.release(&untried).await.unwrap(), [Finalized::Finalized; 2]);
    let in_lane = Finalize { ends_lane: false, ..done(&run[0]) };
    assert_eq!(finalize(&store, in_lane).await, Finalized::Finalized);
    assert_eq!((parked(&store).await, crate::deliver(&store).await), (vec![], vec![2, 3]));
}

#[tokio::test]
async fn a_release_in_flight_is_passed_over_by_claims_and_a_parker_and_its_row_goes_first_afterwards() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        let a1 = &claim(&store).await[0];
        let mut releaser = connect(&database).await;
        let mut releasing = releaser.begin().await.unwrap();
        assert_eq!(only_ids(&Statement::release(a1).run(&mut releasing).await), [1]);
        assert_eq!((claimed(&store).await, park(&store).await), (vec![], 0));
        assert_eq!(finalize(&store, done(a1)).await, Finalized::Busy);
        releasing.commit().await.unwrap();
        assert_eq!(finalize(&store, done(a1)).await, Finalized::LeaseLost);
        assert_eq!(park(&store).await, 1);
        assert_eq!(crate::deliver(&store).await, [1, 2]);
    }
}

#[tokio::test]
async fn a_release_that_was_held_up_while_its_lease_was_taken_over_changes_nothing() {
    let (database, store) = outbox(Postgres::Latest, &["a"]).await;
    let old = &claim(&store).await[0];
    let release = Statement::release(old).hold_up(&database, &store).await;
    expire_leases(&store).await;
    let new = &claim(&store).await[0];
    assert_eq!(only_ids(&release.go_on().await), NONE);
    assert_eq!(rows(&store).await, [(1, "processing".to_owned(), 2)]);
    assert_eq!(finalize(&store, done(new)).await, Finalized::Finalized);
}

#[tokio::test]
async fn a_finalize_that_was_held_up_while_its_lease_was_taken_over_changes_nothing() {
    let (database, store) = outbox(Postgres::Latest, &["a", "a"]).await;
    assert_eq!(park(&store).await, 1);
    let old = &claim(&store).await[0];
    let finalizer = Statement::done(old).hold_up(&database, &store).await;
    expire_leases(&store).await;
    assert_eq!(claimed(&store).await, [1]);
    assert_eq!(only_ids(&finalizer.go_on().await), NONE);
    assert_eq!((rows(&store).await[0].1.as_str(), parked(&store).await), ("processing", vec![2]));
}

#[tokio::test]
async fn a_parker_that_saw_a_row_before_it_was_claimed_and_handed_back_parks_the_next_which_still_goes_in_order() {
    let (database, store) = outbox(Postgres::Latest, &["a", "a"]).await;
    let parker = Statement::park().hold_up(&database, &store).await;
    let a1 = &claim(&store).await[0];
    assert_eq!(store.release(&[crate::support::untried(1, a1.lease_version)]).await.unwrap(), [Finalized::Finalized]);
    assert_eq!(rows_parked(&parker.go_on().await), 1);
    assert_eq!(crate::deliver(&store).await, [1, 2]);
}

#[tokio::test]
async fn a_finalize_and_a_reaper_never_both_write_a_row() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a", "b", "b", "c", "c"]).await;
        let [a, b, c] = &claim(&store).await[..] else { panic!() };
        expire_leases(&store).await;
        let mut other = connect(&database).await;

        // the finalize comes first
        let mut finalizing = other.begin().await.unwrap();
        assert_eq!(only_ids(&Statement::done(a).run(&mut finalizing).await), [1]);
        execute(&store, "UPDATE outbox SET attempts = 0 WHERE id IN (3, 5)").await;
        assert_eq!(store.reap(1, 100).await.unwrap(), NONE);
        finalizing.commit().await.unwrap();

        // the reaper comes first
        execute(&store, "UPDATE outbox SET attempts = 1 WHERE id = 3").await;
        let mut reaping = other.begin().await.unwrap();
        assert_eq!(only_ids(&Statement::reap().run(&mut reaping).await), [3]);
        assert_eq!(finalize(&store, done(b)).await, Finalized::Busy);
        reaping.commit().await.unwrap();
        assert_eq!(finalize(&store, done(b)).await, Finalized::LeaseLost);

        // the reaper has seen the row, and is held up
        execute(&store, "UPDATE outbox SET attempts = 1 WHERE id = 5").await;
        let reaper = Statement::reap().hold_up(&database, &store).await;
        assert_eq!(finalize(&store, done(c)).await, Finalized::Finalized);
        assert_eq!(only_ids(&reaper.go_on().await), NONE);

        assert_eq!(park(&store).await, 1, "b4 waits behind b3, which is dead");
        assert_eq!(claimed(&store).await, [2, 6]);
        store.skip(3, "not needed").await.unwrap();
        assert_eq!(claimed(&store).await, [4], "at once");
    }
}

#[tokio::test]
async fn a_purge_takes_nothing_that_a_finalize_is_only_writing_and_takes_nothing_from_one() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a", "a"]).await;
        assert_eq!(park(&store).await, 2);
        let a1 = &claim(&store).await[0];
        let mut other = connect(&database).await;
        let mut finalizing = other.begin().await.unwrap();
        assert_eq!(only_ids(&Statement::done(a1).run(&mut finalizing).await), [1]);
        assert_eq!(store.purge(std::time::Duration::ZERO, 100).await.unwrap(), 0);
        finalizing.commit().await.unwrap();

        let a2 = &claim(&store).await[0];
        let purge = Statement::purge().hold_up(&database, &store).await;
        assert_eq!(finalize(&store, done(a2)).await, Finalized::Finalized);
        assert_eq!(only_ids(&purge.go_on().await), [1], "a2 was not done when it began");

        let mut purging = other.begin().await.unwrap();
        assert_eq!(only_ids(&Statement::purge().run(&mut purging).await), [2]);
        assert_eq!(finalize(&store, done(a2)).await, Finalized::LeaseLost);
        let a3 = &claim(&store).await[0];
        assert_eq!(finalize(&store, done(a3)).await, Finalized::Finalized);
        purging.commit().await.unwrap();
        assert_eq!(rows(&store).await, [(3, "done".to_owned(), 1)]);
    }
}

/// A person's forgotten transaction on the next row must not keep a sent message unfinished for ever.
#[tokio::test]
async fn a_finalize_that_insists_is_written_although_the_next_row_is_locked_and_a_sweep_makes_that_ready() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        assert_eq!(park(&store).await, 1);
        let a1 = &claim(&store).await[0];
        let mut person = connect(&database).await;
        let mut forgotten = person.begin().await.unwrap();
        sqlx::query("SELECT FROM outbox WHERE id = 2 FOR UPDATE").execute(&mut *forgotten).await.unwrap();
        assert_eq!(finalize(&store, done(a1)).await, Finalized::Busy);
        let in_lane = Finalize { ends_lane: false, ..done(a1) };
        assert_eq!(finalize(&store, Finalize { lease_version: 0, ..in_lane }).await, Finalized::LeaseLost);
        let insists = Finalize { insists: true, ..done(a1) };
        assert_eq!(finalize(&store, insists).await, Finalized::Finalized);
        assert_eq!(sweep(&store).await, NONE, "it waits for nobody");
        forgotten.rollback().await.unwrap();
        assert_eq!((parked(&store).await, claimed(&store).await), (vec![2], vec![]));
        assert_eq!((sweep(&store).await, claimed(&store).await), (vec![2], vec![2]));
    }
}

#[tokio::test]
async fn only_the_verdict_done_on_the_last_of_a_lane_needs_the_next_row() {
    let (database, store) = outbox(Postgres::Latest, &["a", "a", "b", "b", "c", "c"]).await;
    let [a, b, c] = &claim(&store).await[..] else { panic!() };
    let mut person = connect(&database).await;
    let mut forgotten = person.begin().await.unwrap();
    sqlx::query("SELECT FROM outbox WHERE id IN (2, 4, 6) FOR UPDATE").execute(&mut *forgotten).await.unwrap();
    let backoff = ordered_outbox::outcome::Verdict::Backoff { delay: std::time::Duration::ZERO, error: "x".into() };
    let dead = ordered_outbox::outcome::Verdict::Dead { error: "x".into() };
    let verdicts = [Finalize { ends_lane: false, ..done(a) }, Finalize::new(b, backoff), Finalize::new(c, dead)];
    assert_eq!(store.finalize(&verdicts).await.unwrap(), [Finalized::Finalized; 3]);
    forgotten.rollback().await.unwrap();
    assert_eq!(claimed(&store).await, [2, 3]);
}

/// A parker never parks a head, and no row twice.
#[tokio::test]
async fn a_parker_parks_what_waits_behind_pending_and_dead_rows_and_nothing_else() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["dead"]).await;
        kill_heads(&store).await;
        seed(&store, &["dead", "dead", "alone", "two", "two", "busy"].map(|aggregate| (aggregate, "e"))).await;
        execute(&store, "UPDATE outbox SET available_at = now() + interval '1 hour' WHERE aggregate_id <> 'busy'")
            .await;
        assert_eq!(claimed(&store).await, [7]);
        seed(&store, &[("busy", "e"), ("busy", "e"), ("two", "e")]).await;
        execute(&store, "UPDATE outbox SET available_at = now() WHERE id <> 5 AND status = 'pending'").await;
        // dead: 1 | 2 3   alone: 4   two: (5 later) 6 10   busy: 7 | 8 9
        assert_eq!(park(&store).await, 5);
        assert_eq!(parked(&store).await, [2, 3, 6, 9, 10], "4 is a head, 8 is next after a row that is processing");
        assert_eq!((park(&store).await, sweep(&store).await), (0, vec![]));
    }
}

/// Several purges share the work, and a row that a person has locked keeps none of them waiting.
#[tokio::test]
async fn a_purge_passes_over_rows_that_somebody_else_has_locked() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "b", "c"]).await;
        let messages = claim(&store).await;
        for message in &messages {
            assert_eq!(finalize(&store, done(message)).await, Finalized::Finalized);
        }
        let mut other = connect(&database).await;
        let mut purging = other.begin().await.unwrap();
        let two = Statement::new(PURGE).with(0.0).with(2_i64);
        assert_eq!(only_ids(&two.run(&mut purging).await), [1, 2]);
        assert_eq!(store.purge(std::time::Duration::ZERO, 2).await.unwrap(), 1);
        purging.rollback().await.unwrap();
        assert_eq!(store.purge(std::time::Duration::ZERO, 9).await.unwrap(), 2);
    }
}
