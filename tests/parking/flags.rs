//! `parked` is a hint: whatever people do to rows and flags by hand, order holds and everything is delivered.

use std::time::Duration;

use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::{Patience, Verdict};
use ordered_outbox::publisher::RecordingPublisher;
use ordered_outbox::store::{ClaimRequest, Finalize, Finalized, Look};
use ordered_outbox::{Dispatcher, DispatcherConfig, MessageId, Outcome, Store, Summary};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use crate::support::{Postgres, eventually, execute, make_due, rows, seed};
use sqlx::Connection as _;

use crate::{claim, claimed, connect, deliver, done, finalize, kill_heads, outbox, park, parked, sweep};

fn config() -> DispatcherConfig {
    DispatcherConfig {
        poll_interval: Duration::from_millis(50),
        breaker: Backoff { base: Duration::from_millis(2), cap: Duration::from_millis(10) },
        patience: Patience {
            backoff: Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(50) },
            ..Patience::default()
        },
        ..DispatcherConfig::default()
    }
}

/// Runs a dispatcher until every row is done, and something else meanwhile, to its end.
async fn dispatch_all(store: &Store, recording: &RecordingPublisher, meanwhile: impl Future<Output = ()>) -> Summary {
    let stop = CancellationToken::new();
    let dispatcher = Dispatcher::new(store.clone(), recording.clone(), config()).unwrap();
    let running = tokio::spawn(dispatcher.run(stop.clone()));
    meanwhile.await;
    eventually("everything is done", || async { rows(store).await.iter().all(|(_, status, _)| status == "done") })
        .await;
    stop.cancel();
    running.await.unwrap().unwrap()
}

const DONE_BY_HAND: &str = "UPDATE outbox SET status = 'done', done_at = now() WHERE id = 1";
const DELETED_BY_HAND: &str = "DELETE FROM outbox WHERE id = 1";

#[tokio::test]
async fn a_row_parked_behind_one_that_a_person_finished_or_deleted_is_found_by_a_sweep() {
    for (postgres, _) in Postgres::all() {
        for by_hand in [DONE_BY_HAND, DELETED_BY_HAND] {
            let (_database, store) = outbox(postgres, &["a", "a", "a"]).await;
            assert_eq!(park(&store).await, 2);
            assert_eq!(sweep(&store).await, [0; 0]);
            execute(&store, by_hand).await;
            assert_eq!(claimed(&store).await, [0; 0]);
            assert_eq!(sweep(&store).await, [2]);
            assert_eq!((sweep(&store).await, parked(&store).await), (vec![], vec![3]));
            assert_eq!(deliver(&store).await, [2, 3]);
        }
    }
}

#[tokio::test]
async fn a_running_dispatcher_finds_what_a_change_by_hand_stranded_and_counts_it() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "a", "a", "b", "b"]).await;
    execute(&store, "UPDATE outbox SET available_at = now() + interval '1 hour' WHERE id IN (1, 4)").await;
    assert_eq!(park(&store).await, 3);
    execute(&store, "DELETE FROM outbox WHERE id IN (1, 4)").await;
    let recording = RecordingPublisher::new();
    let summary = dispatch_all(&store, &recording, async {}).await;
    let (a, b): (Vec<_>, Vec<_>) = recording.accepted_ids().into_iter().partition(|id| *id < 4);
    assert_eq!((a, b, summary.stranded), (vec![2, 3], vec![5], 2));
}

#[tokio::test]
async fn a_parked_row_whose_status_is_set_by_hand_is_not_refused_and_stays_in_its_place() {
    for by_hand in [
        "UPDATE outbox SET status = 'done', done_at = now() WHERE id = 2",
        "UPDATE outbox SET status = 'processing', lease_owner = 'me', lease_until = now() - interval '1 second' WHERE id = 2",
        "UPDATE outbox SET status = 'dead' WHERE id = 2",
        "DELETE FROM outbox WHERE id = 2",
    ] {
        let (_database, store) = outbox(Postgres::Latest, &["a", "a", "a"]).await;
        assert_eq!(park(&store).await, 2);
        execute(&store, by_hand).await;
        let mut delivered = deliver(&store).await;
        if by_hand.contains("dead") {
            assert_eq!(delivered, [1], "a3 waits at the gate");
            store.retry(2).await.unwrap();
            assert_eq!(parked(&store).await, [3], "what is answered is ready");
            delivered.extend(deliver(&store).await);
        }
        let expected =
            if by_hand.contains("processing") || by_hand.contains("dead") { vec![1, 2, 3] } else { vec![1, 3] };
        assert_eq!((delivered, sweep(&store).await), (expected, vec![]), "{by_hand}");
    }
}

/// A row that is not pending may carry the flag by a person's hand; it must not come back with it.
#[tokio::test]
async fn a_flag_set_by_hand_while_a_row_is_processing_delays_it_by_a_sweep_at_the_most() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "b", "c"]).await;
    let [a, b, c] = &claim(&store).await[..] else { panic!() };
    execute(&store, "UPDATE outbox SET parked = true").await;
    let backoff = Verdict::Backoff { delay: Duration::ZERO, error: "x".into() };
    assert_eq!(finalize(&store, Finalize::new(a, backoff)).await, Finalized::Finalized);
    assert_eq!(store.release(&[crate::support::untried(2, b.lease_version)]).await.unwrap(), [Finalized::Finalized]);
    assert_eq!(finalize(&store, done(c)).await, Finalized::Finalized);
    sweep(&store).await;
    assert_eq!(claimed(&store).await, [1, 2]);
}

#[tokio::test]
async fn a_gated_aggregates_rows_are_parked_and_go_in_order_at_once_after_a_retry_and_after_a_skip() {
    for (postgres, _) in Postgres::all() {
        for is_skipped in [false, true] {
            let (_database, store) = outbox(postgres, &["a", "a", "a", "a"]).await;
            kill_heads(&store).await;
            assert_eq!((park(&store).await, claimed(&store).await), (3, vec![]));
            let expected = if is_skipped {
                store.skip(1, "not needed").await.unwrap();
                vec![2, 3, 4]
            } else {
                store.retry(1).await.unwrap();
                vec![1, 2, 3, 4]
            };
            assert_eq!(park(&store).await, 0, "all that wait are parked already");
            assert_eq!((sweep(&store).await, deliver(&store).await), (vec![], expected));
        }
    }
}

/// C05, C08
#[tokio::test]
async fn rows_parked_behind_a_head_that_is_backed_off_or_deferred_wait_for_it_and_follow_it() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "a", "b", "b"]).await;
    let [a, b] = &claim(&store).await[..] else { panic!() };
    let (delay, error) = (Duration::from_hours(1), "later".to_owned());
    let verdicts = [
        Finalize::new(a, Verdict::Backoff { delay, error: error.clone() }),
        Finalize::new(b, Verdict::Defer { delay, error }),
    ];
    assert_eq!(store.finalize(&verdicts).await.unwrap(), [Finalized::Finalized; 2]);
    assert_eq!((park(&store).await, parked(&store).await), (2, vec![2, 4]));
    assert_eq!((sweep(&store).await, claimed(&store).await), (vec![], vec![]));
    make_due(&store).await;
    assert_eq!(deliver(&store).await, [1, 3, 2, 4]);
}

#[tokio::test]
async fn a_scheduled_row_behind_a_finished_one_is_unparked_and_keeps_its_time() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "a", "b", "b"]).await;
    execute(
        &store,
        "UPDATE outbox SET parked = true, available_at = CASE id WHEN 2 THEN now() + interval '1 hour' \
         ELSE now() - interval '1 hour' END WHERE id IN (2, 4)",
    )
    .await;
    assert_eq!(deliver(&store).await, [1, 3, 4]);
    let ahead: Vec<bool> = sqlx::query_scalar(
        "SELECT available_at > now() + interval '50 minutes' FROM outbox WHERE status = 'pending' AND NOT parked",
    )
    .fetch_all(store.pool())
    .await
    .unwrap();
    assert_eq!((ahead, parked(&store).await), (vec![true], vec![]));
}

/// The next row goes behind everything that was ready before it.
#[tokio::test]
async fn a_row_that_becomes_a_head_is_due_as_of_then_so_that_no_aggregate_overtakes_the_others() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "a", "b", "c"]).await;
        assert_eq!(park(&store).await, 1);
        let one_head = || async {
            let request = ClaimRequest { look: Look::from_the_front(4), ..crate::request("w", 1) };
            store.claim(&request).await.unwrap().messages.remove(0)
        };
        let mut order = Vec::new();
        for _ in 0..4 {
            let message = one_head().await;
            order.push(message.id);
            assert_eq!(finalize(&store, done(&message)).await, Finalized::Finalized);
        }
        assert_eq!(order, [1, 3, 4, 2]);
    }
}

/// P2 and P1, whatever the flags say.
#[tokio::test]
async fn wrong_flags_of_every_kind_never_break_order_and_everything_is_delivered() {
    let random_seed: u64 = rand::random();
    println!("seed {random_seed}");
    let mut random = StdRng::seed_from_u64(random_seed);
    let (_database, store) = outbox(Postgres::Latest, &[]).await;
    let aggregates: Vec<_> = (0..60).map(|_| format!("order-{}", random.random_range(0..7))).collect();
    let messages: Vec<_> = aggregates.iter().map(|aggregate| (aggregate.as_str(), "e")).collect();
    let seeded = seed(&store, &messages).await;
    let recording = RecordingPublisher::new();
    for id in seeded.iter().filter(|_| random.random_range(0..4) == 0).take(8) {
        recording.script(*id, [Outcome::Backoff { error: "trouble".into() }]);
    }
    let by_hand = async {
        for _ in 0..30 {
            let flags: Vec<i64> = (1..=60).filter(|_| random.random()).collect();
            sqlx::query("UPDATE outbox SET parked = (id = ANY ($1)) WHERE parked <> (id = ANY ($1))")
                .bind(flags)
                .execute(store.pool())
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        println!("the flags stay as they are now");
    };
    dispatch_all(&store, &recording, by_hand).await;
    let accepted = recording.accepted();
    for aggregate in 0..7 {
        let aggregate = format!("order-{aggregate}");
        let expected: Vec<MessageId> =
            seeded.iter().zip(&aggregates).filter(|(_, of)| **of == aggregate).map(|(id, _)| *id).collect();
        let got: Vec<_> = accepted.iter().filter(|m| m.aggregate_id == aggregate).map(|m| m.id).collect();
        assert_eq!(got, expected, "seed {random_seed}, {aggregate}");
    }
}

/// A person forgot a transaction on the next row: the message that was sent is done all the same, and the next one goes
/// when it is let go.
#[tokio::test]
async fn a_dispatcher_finalizes_in_front_of_a_row_that_is_locked_for_long_and_goes_on_when_it_is_free() {
    let (database, store) = outbox(Postgres::Latest, &["a", "a"]).await;
    execute(&store, "UPDATE outbox SET attempts = 1 WHERE id = 1").await;
    assert_eq!(park(&store).await, 1);
    let mut person = connect(&database).await;
    let mut forgotten = person.begin().await.unwrap();
    sqlx::query("SELECT FROM outbox WHERE id = 2 FOR UPDATE").execute(&mut *forgotten).await.unwrap();
    let recording = RecordingPublisher::new();
    let meanwhile = async {
        eventually("a1 is done", || async { rows(&store).await[0].1 == "done" }).await;
        assert_eq!((recording.accepted_ids(), parked(&store).await), (vec![1], vec![2]));
        forgotten.rollback().await.unwrap();
    };
    let summary = dispatch_all(&store, &recording, meanwhile).await;
    assert_eq!((recording.accepted_ids(), summary.stranded, summary.lease_lost), (vec![1, 2], 1, 0));
}

/// C01: a row that turns up behind the position of every claimer, as one does whose transaction took long to commit.
#[tokio::test]
async fn a_running_dispatcher_finds_a_row_that_turns_up_behind_its_position() {
    let (_database, store) = outbox(Postgres::Latest, &["a"]).await;
    let recording = RecordingPublisher::new();
    let meanwhile = async {
        eventually("it has passed", || async { rows(&store).await[0].1 == "done" }).await;
        execute(
            &store,
            "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, available_at) \
             VALUES ('order', 'b', 'e', '1', now() - interval '1 hour')",
        )
        .await;
    };
    let summary = dispatch_all(&store, &recording, meanwhile).await;
    assert_eq!((recording.accepted_ids(), summary.stranded), (vec![1, 2], 0));
}
