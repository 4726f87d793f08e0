//! What a claim looks at, how much it takes, and where the next one goes on.

use ordered_outbox::Store;
use ordered_outbox::store::{Claim, ClaimRequest, Look, Position, Window};
use sqlx::Connection as _;

use crate::statement::{Statement, claimed_ids};
use crate::support::{Postgres, execute, expire_leases, ids, rows, seed};
use crate::{connect, outbox, park, request};

/// A claim of up to 100 rows, ten of an aggregate, that looks at up to `rows` due rows from the front, or from where an
/// earlier claim ended, and at as many from the tail on.
fn window(rows: u32, earlier: Option<Window>) -> ClaimRequest {
    let look = earlier.map_or(Look::from_the_front(rows), |earlier| Look::after(&earlier, rows));
    ClaimRequest { look, run_length: 10, ..request("w", 100) }
}

async fn claim(store: &Store, request: &ClaimRequest) -> Claim {
    store.claim(request).await.unwrap()
}

/// Rows due a minute apart, the first one the earliest.
async fn minutes_apart(store: &Store) {
    execute(store, "UPDATE outbox SET available_at = now() - interval '1 day' + id * interval '1 minute'").await;
}

/// Payloads of 1,000 bytes and a little.
async fn of_a_thousand_bytes(store: &Store) {
    execute(store, "UPDATE outbox SET payload = to_jsonb(repeat('x', 1000))").await;
    let sizes: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE size_bytes = 1004")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(sizes, rows(store).await.len() as i64);
}

#[tokio::test]
async fn a_claim_looks_at_its_window_and_the_next_one_goes_on_behind_it() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "a", "a", "b", "a", "c"]).await;
        minutes_apart(&store).await;
        execute(&store, "UPDATE outbox SET attempts = 1 WHERE id = 1").await;
        let first = claim(&store, &window(3, None)).await;
        assert_eq!((ids(&first.messages), first.window.ended), (vec![1], false));
        assert_eq!((first.window.aggregates, first.window.waiting), (1, 2));
        let second = claim(&store, &window(2, Some(first.window))).await;
        assert_eq!((ids(&second.messages), second.window.ended), (vec![4], false));
        assert_eq!((second.window.aggregates, second.window.waiting), (2, 1));
        let third = claim(&store, &window(2, Some(second.window))).await;
        assert_eq!((ids(&third.messages), third.window.ended), (vec![6], true));
        assert!(first.window.reached < second.window.reached && second.window.reached < third.window.reached);
        let again = claim(&store, &window(10, None)).await;
        assert_eq!((ids(&again.messages), again.window.ended, again.window.waiting), (vec![], true, 3));
    }
}

#[tokio::test]
async fn what_is_parked_is_not_looked_at() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "a", "a", "b"]).await;
    assert_eq!(park(&store).await, 2);
    let seen = claim(&store, &ClaimRequest { run_length: 1, ..window(2, None) }).await;
    assert_eq!((ids(&seen.messages), seen.window.aggregates, seen.window.waiting), (vec![1, 4], 2, 0));
}

/// The lowest id of an aggregate in the window is its head, not the earliest due.
#[tokio::test]
async fn a_head_that_is_due_later_than_the_rows_behind_it_is_claimed_first() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "a", "b"]).await;
        execute(&store, "UPDATE outbox SET available_at = now() - id * interval '1 minute'").await;
        assert_eq!(ids(&claim(&store, &window(10, None)).await.messages), [1, 2, 3]);
    }
}

/// A full batch leaves heads behind: the position stays before them.
#[tokio::test]
async fn the_position_does_not_pass_heads_that_a_full_batch_had_no_room_for() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["e", "d", "c", "b", "a"]).await;
        minutes_apart(&store).await;
        let mut from = None;
        for expected in [vec![2, 1], vec![4, 3], vec![5], vec![]] {
            let request = ClaimRequest { batch_size: 2, ..window(10, from) };
            let claim = claim(&store, &request).await;
            assert_eq!(ids(&claim.messages), expected, "earliest due first, told by aggregate");
            assert_eq!((claim.window.ended, claim.window.waiting), (expected.len() < 2, 0));
            from = Some(claim.window);
        }
    }
}

#[tokio::test]
async fn a_batch_full_of_takeovers_leaves_the_position_where_it_was() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "b"]).await;
    assert_eq!(ids(&claim(&store, &window(10, None)).await.messages), [1, 2]);
    expire_leases(&store).await;
    let c = seed(&store, &[("c", "e")]).await;
    let full = claim(&store, &ClaimRequest { batch_size: 2, ..window(10, None) }).await;
    assert_eq!((ids(&full.messages), full.window.ended), (vec![1, 2], false));
    assert_eq!(ids(&claim(&store, &window(10, Some(full.window))).await.messages), c);
}

/// Takeovers are looked for from the front only; a dispatcher looks from there every second.
#[tokio::test]
async fn leases_that_ran_out_are_taken_over_by_a_claim_from_the_front() {
    let (_database, store) = outbox(Postgres::Latest, &["a"]).await;
    let first = claim(&store, &window(10, None)).await;
    expire_leases(&store).await;
    assert_eq!(ids(&claim(&store, &window(10, Some(first.window))).await.messages), [0; 0]);
    assert_eq!(ids(&claim(&store, &window(10, None)).await.messages), [1]);
}

// C13
#[tokio::test]
async fn a_claim_takes_no_more_bytes_than_it_has_room_for_and_heads_before_the_rows_behind_them() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "a", "a", "b", "b", "c"]).await;
        of_a_thousand_bytes(&store).await;
        let bytes = |batch_bytes| ClaimRequest { batch_bytes, ..window(10, None) };
        let four = claim(&store, &bytes(4_016)).await;
        assert_eq!((ids(&four.messages), four.window.ended), (vec![1, 2, 4, 6], true));
    }
}

#[tokio::test]
async fn one_byte_less_is_one_row_less_and_a_row_larger_than_all_room_is_taken_alone() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "a", "b"]).await;
    of_a_thousand_bytes(&store).await;
    let bytes = |batch_bytes| ClaimRequest { batch_bytes, ..window(10, None) };
    assert_eq!(ids(&claim(&store, &bytes(2_007)).await.messages), [1]);
    assert_eq!(ids(&claim(&store, &bytes(1)).await.messages), [3]);
}

#[tokio::test]
async fn the_position_does_not_pass_heads_that_there_were_no_bytes_for() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "b", "c"]).await;
        of_a_thousand_bytes(&store).await;
        minutes_apart(&store).await;
        let mut from = None;
        for (expected, ended) in [(vec![1], false), (vec![2], false), (vec![3], true), (vec![], true)] {
            let claim = claim(&store, &ClaimRequest { batch_bytes: 1_100, ..window(10, from) }).await;
            assert_eq!((ids(&claim.messages), claim.window.ended), (expected, ended));
            from = Some(claim.window);
        }
    }
}

/// C01: it was not there when the claim passed.
#[tokio::test]
async fn a_row_that_commits_behind_the_position_is_found_from_the_front() {
    let (database, store) = outbox(Postgres::Latest, &["a"]).await;
    let mut producer = connect(&database).await;
    let mut late = producer.begin().await.unwrap();
    sqlx::query(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, available_at) \
         VALUES ('order', 'b', 'e', '1', now() - interval '1 hour')",
    )
    .execute(&mut *late)
    .await
    .unwrap();
    let first = claim(&store, &window(10, None)).await;
    assert_eq!((ids(&first.messages), first.window.ended), (vec![1], true));
    late.commit().await.unwrap();
    let behind = claim(&store, &window(10, Some(first.window))).await;
    assert_eq!(ids(&behind.messages), [0; 0]);
    assert_eq!(ids(&claim(&store, &window(10, None)).await.messages), [2]);
}

/// What commits within 0.2 s is not behind the position of a claim that came to the end.
#[tokio::test]
async fn at_the_end_the_position_is_a_fifth_of_a_second_ago() {
    let (database, store) = outbox(Postgres::Latest, &["a"]).await;
    let mut producer = connect(&database).await;
    let mut late = producer.begin().await.unwrap();
    let began: chrono::DateTime<chrono::Utc> = sqlx::query_scalar(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'b', 'e', '1') \
         RETURNING now()",
    )
    .fetch_one(&mut *late)
    .await
    .unwrap();
    let first = claim(&store, &window(10, None)).await;
    assert_eq!((ids(&first.messages), first.window.ended), (vec![1], true));
    // as if the claim had come at once, however slow this machine is
    sqlx::query("UPDATE outbox SET available_at = greatest(now(), $1) WHERE aggregate_id = 'b'")
        .bind(began)
        .execute(&mut *late)
        .await
        .unwrap();
    let slow: bool = sqlx::query_scalar("SELECT clock_timestamp() > $1 + interval '180 milliseconds'")
        .bind(began)
        .fetch_one(store.pool())
        .await
        .unwrap();
    late.commit().await.unwrap();
    let next = claim(&store, &window(10, Some(first.window))).await;
    assert!(slow || ids(&next.messages) == [2], "{:?}", next.window);
}

#[tokio::test]
async fn rows_that_others_had_locked_when_they_were_passed_are_found_from_the_front() {
    let (database, store) = outbox(Postgres::Latest, &["a", "b", "c"]).await;
    minutes_apart(&store).await;
    let mut person = connect(&database).await;
    let mut holding = person.begin().await.unwrap();
    sqlx::query("SELECT FROM outbox WHERE id = 2 FOR UPDATE").execute(&mut *holding).await.unwrap();
    let first = claim(&store, &window(2, None)).await;
    assert_eq!((ids(&first.messages), first.window.waiting), (vec![1], 1));
    holding.rollback().await.unwrap();
    let second = claim(&store, &window(2, Some(first.window))).await;
    assert_eq!(ids(&second.messages), [3]);
    assert_eq!(ids(&claim(&store, &window(2, None)).await.messages), [2]);
}

/// Fair: due rows are looked at in the order in which they became due, whatever aggregate they are of.
#[tokio::test]
async fn a_hot_aggregate_keeps_no_other_from_being_seen_for_longer_than_its_rows_take_to_pass() {
    for (postgres, _) in Postgres::all() {
        let mut aggregates = vec!["hot"; 200];
        aggregates.push("cold");
        let (_database, store) = outbox(postgres, &aggregates).await;
        minutes_apart(&store).await;
        let (mut from, mut seen) = (None, Vec::new());
        for _ in 0..3 {
            let claim = claim(&store, &ClaimRequest { run_length: 1, ..window(100, from) }).await;
            seen.push(ids(&claim.messages));
            from = Some(claim.window);
        }
        assert_eq!(seen, [vec![1], vec![], vec![201]]);
        assert_eq!(park(&store).await, 198, "2 is next after one that is processing");
        let from_the_front = claim(&store, &window(100, None)).await;
        assert_eq!((from_the_front.window.waiting, from_the_front.window.ended), (1, true));
    }
}

/// What others wait for is written in front of every position.
#[tokio::test]
async fn a_row_that_is_handed_back_is_found_from_where_the_last_claim_ended() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "b"]).await;
    minutes_apart(&store).await;
    let first = claim(&store, &window(10, None)).await;
    assert_eq!((ids(&first.messages), first.window.ended), (vec![1, 2], true));
    store.release(&[crate::support::untried(1, first.messages[0].lease_version)]).await.unwrap();
    assert_eq!(ids(&claim(&store, &window(10, Some(first.window))).await.messages), [1]);
}

#[tokio::test]
async fn behind_the_end_nothing_is_looked_at_again_that_has_waited_for_longer_than_a_second() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "a", "a"]).await;
    execute(&store, "UPDATE outbox SET available_at = now() - id * interval '1 minute'").await;
    let first = claim(&store, &ClaimRequest { run_length: 1, ..window(10, None) }).await;
    assert_eq!((ids(&first.messages), first.window.waiting), (vec![1], 2));
    assert_eq!(claim(&store, &window(10, Some(first.window))).await.window.waiting, 0);
}

#[tokio::test]
async fn a_parker_goes_on_step_by_step_and_leaves_what_has_not_been_due_for_long() {
    let (_database, store) = outbox(Postgres::Latest, &["a"; 6]).await;
    minutes_apart(&store).await;
    execute(&store, "UPDATE outbox SET available_at = now() - interval '1 minute' WHERE id = 6").await;
    let hour = std::time::Duration::from_hours(1);
    let (mut from, mut seen) = (None, Vec::new());
    for _ in 0..3 {
        let step = store.park(from, 2, hour).await.unwrap();
        seen.push((step.rows, step.ended));
        from = Some(step.reached);
    }
    assert_eq!(seen, [(1, false), (2, false), (1, true)], "1 is a head, 6 has not waited for long");
    assert_eq!(crate::parked(&store).await, [2, 3, 4, 5]);
}

/// A long backlog, gated perhaps, does not keep what becomes ready waiting.
#[tokio::test]
async fn while_there_is_a_backlog_the_tail_is_looked_at_too() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "a", "a", "a", "a", "a"]).await;
        execute(&store, "UPDATE outbox SET status = 'dead' WHERE id = 1").await;
        minutes_apart(&store).await;
        let first = claim(&store, &window(2, None)).await;
        assert_eq!((ids(&first.messages), first.window.ended, first.window.waiting), (vec![], false, 2));
        assert_eq!(seed(&store, &[("b", "e"), ("c", "e")]).await, [7, 8]);
        let second = claim(&store, &window(2, Some(first.window))).await;
        assert_eq!((ids(&second.messages), second.window.ended), (vec![7, 8], false));
        assert!(second.window.reached < second.window.tail, "the backlog goes on");
        assert_eq!(seed(&store, &[("d", "e"), ("e", "e"), ("f", "e")]).await, [9, 10, 11]);
        let look = Look { tail_window: 2, ..Look::after(&second.window, 9) };
        let third = claim(&store, &ClaimRequest { look, ..window(1, None) }).await;
        assert_eq!((ids(&third.messages), third.window.waiting), (vec![9, 10], 1), "as many as the tail's own window");
        assert!(
            !third.window.ended && third.window.reached == third.window.tail,
            "the backlog was looked at, the tail was not"
        );
        let fourth = claim(&store, &window(2, Some(third.window))).await;
        assert_eq!((ids(&fourth.messages), fourth.window.ended), (vec![11], true));
    }
}

#[tokio::test]
async fn heads_of_the_backlog_go_before_those_at_the_tail_and_neither_position_passes_what_was_left() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "b", "c", "d"]).await;
        minutes_apart(&store).await;
        let front = claim(&store, &ClaimRequest { batch_size: 1, ..window(10, None) }).await;
        assert_eq!(ids(&front.messages), [1]);
        assert_eq!(seed(&store, &[("e", "e"), ("f", "e"), ("g", "e")]).await, [5, 6, 7]);
        let (mut seen, mut earlier) = (Vec::new(), front.window);
        for _ in 0..4 {
            let claim = claim(&store, &ClaimRequest { batch_size: 2, ..window(10, Some(earlier)) }).await;
            seen.push((ids(&claim.messages), claim.window.reached == claim.window.tail, claim.window.ended));
            earlier = claim.window;
        }
        assert_eq!(
            seen,
            [(vec![2, 3], false, false), (vec![4, 5], true, false), (vec![6, 7], true, true), (vec![], true, true)]
        );
    }
}

/// An aggregate that has a row in the backlog and one at the tail: the first is its head.
#[tokio::test]
async fn a_row_at_the_tail_is_no_head_while_an_earlier_one_is_in_the_backlog() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["b", "b", "b", "a"]).await;
        minutes_apart(&store).await;
        let first = claim(&store, &ClaimRequest { run_length: 1, ..window(1, None) }).await;
        assert_eq!(ids(&first.messages), [1]);
        assert_eq!(seed(&store, &[("a", "e")]).await, [5]);
        let second = claim(&store, &ClaimRequest { run_length: 1, ..window(1, Some(first.window)) }).await;
        assert_eq!((ids(&second.messages), second.window.waiting), (vec![], 2), "4 is seen by nobody, 5 waits for it");
        let third = claim(&store, &ClaimRequest { run_length: 1, ..window(9, Some(second.window)) }).await;
        assert_eq!(ids(&third.messages), [4]);
    }
}

/// Others are at the first rows.
#[tokio::test]
async fn rows_are_stepped_over_in_the_backlog_unless_too_few_are_left_behind_them() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "b", "c", "d", "e"]).await;
        minutes_apart(&store).await;
        let home = claim(&store, &window(1, None)).await;
        assert_eq!(ids(&home.messages), [1]);
        let look = Look { skip: 2, ..Look::after(&home.window, 1) };
        let aside = claim(&store, &ClaimRequest { look, ..window(1, None) }).await;
        assert_eq!((ids(&aside.messages), aside.window.ended), (vec![4], false));
        assert!(aside.window.reached > home.window.reached);
        let far = claim(&store, &ClaimRequest { look: Look { skip: 2, ..look }, ..window(1, None) }).await;
        assert_eq!((ids(&far.messages), far.window.ended), (vec![5], false), "taken all the same");
        let farther = claim(&store, &ClaimRequest { look: Look { skip: 9, ..look }, ..window(1, None) }).await;
        assert_eq!((ids(&farther.messages), farther.window.ended), (vec![], false));
        assert_eq!(farther.window.reached, home.window.reached);
        let rest = claim(&store, &window(9, Some(home.window))).await;
        assert_eq!((ids(&rest.messages), rest.window.ended), (vec![2, 3], true));
    }
}

#[tokio::test]
async fn rows_are_stepped_over_at_the_tail_unless_too_few_are_left_behind_them() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "b", "c"]).await;
        minutes_apart(&store).await;
        let home = claim(&store, &window(1, None)).await;
        assert_eq!(seed(&store, &[("d", "e"), ("e", "e"), ("f", "e")]).await, [4, 5, 6]);
        let look = Look { tail_skip: 1, tail_window: 1, ..Look::after(&home.window, 9) };
        let aside = claim(&store, &ClaimRequest { look, ..window(1, None) }).await;
        assert_eq!((ids(&aside.messages), aside.window.ended), (vec![2, 3, 5], false), "of the backlog none");
        assert!(aside.window.reached == aside.window.tail && aside.window.tail > home.window.tail);
        let tail_home = Window { reached: home.window.tail, ..home.window };
        let look = Look { tail_skip: 1, ..Look::after(&tail_home, 9) };
        let far = claim(&store, &ClaimRequest { look, ..window(1, None) }).await;
        assert_eq!((ids(&far.messages), far.window.ended), (vec![6], false));
        assert_eq!((far.window.reached, far.window.tail), (tail_home.tail, tail_home.tail));
        let rest = claim(&store, &window(9, Some(far.window))).await;
        assert_eq!((ids(&rest.messages), rest.window.ended), (vec![4], true));
    }
}

/// Two claims at once: the second one is told how many heads it lost, and where.
#[tokio::test]
async fn heads_that_somebody_else_has_locked_are_counted_where_they_are_and_rows_that_wait_are_not() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a", "b", "c", "d"]).await;
        minutes_apart(&store).await;
        execute(&store, "UPDATE outbox SET available_at = now() WHERE aggregate_id = 'c'").await;
        let mut other = connect(&database).await;
        let mut holding = other.begin().await.unwrap();
        sqlx::query("SELECT FROM outbox WHERE aggregate_id <> 'd' FOR UPDATE").execute(&mut *holding).await.unwrap();
        let lost = claim(&store, &window(9, None)).await;
        assert_eq!(ids(&lost.messages), [5]);
        let lost_of = |claim: &Claim| (claim.window.lost_of_backlog, claim.window.lost_of_tail);
        assert_eq!(lost_of(&lost), (2, 1), "a and b in the backlog, c at the tail");
        holding.rollback().await.unwrap();
        let got = claim(&store, &window(9, None)).await;
        assert_eq!((ids(&got.messages), lost_of(&got)), (vec![1, 2, 3, 4], (0, 0)));
    }
}

/// A window of one row, which waits: the next claim looks behind it.
#[tokio::test]
async fn a_row_that_waits_at_the_tail_is_looked_at_once() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a"]).await;
        let one = |earlier| ClaimRequest { run_length: 1, ..window(1, earlier) };
        let first = claim(&store, &window(2, None)).await;
        assert_eq!((ids(&first.messages), first.window.ended), (vec![1], true));
        assert_eq!(seed(&store, &[("a", "e"), ("b", "e")]).await, [2, 3]);
        let second = claim(&store, &one(Some(first.window))).await;
        assert_eq!((ids(&second.messages), second.window.waiting), (vec![], 1));
        let third = claim(&store, &one(Some(second.window))).await;
        assert_eq!((ids(&third.messages), third.window.waiting), (vec![3], 0));
    }
}

#[tokio::test]
async fn rows_that_are_not_due_yet_are_neither_looked_at_nor_passed() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a"]).await;
        execute(&store, "UPDATE outbox SET available_at = now() + interval '1 hour'").await;
        let early = claim(&store, &window(1, None)).await;
        assert_eq!((ids(&early.messages), early.window.ended), (vec![], true));
        assert_eq!((early.window.aggregates, early.window.waiting), (0, 0));
        execute(&store, "UPDATE outbox SET available_at = now()").await;
        assert_eq!(ids(&claim(&store, &window(1, Some(early.window))).await.messages), [1]);
    }
}

/// The database's clock was set back, or another one answers now.
#[tokio::test]
async fn a_tail_ahead_of_the_clock_hides_nothing_that_is_due_and_is_set_back() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "b"]).await;
        execute(&store, "UPDATE outbox SET available_at = now() + interval '1 hour' WHERE id = 2").await;
        let now: chrono::DateTime<chrono::Utc> =
            sqlx::query_scalar("SELECT now()").fetch_one(store.pool()).await.unwrap();
        let ahead = Position::new(now + std::time::Duration::from_hours(2), 0);
        let look = Look { tail: Some(ahead), ..Look::from_the_front(9) };
        let first = claim(&store, &ClaimRequest { look, ..window(1, None) }).await;
        assert_eq!((ids(&first.messages), first.window.ended), (vec![1], true));
        assert_eq!((first.window.aggregates, first.window.waiting), (1, 0));
        assert!(first.window.reached == first.window.tail && first.window.tail < ahead);
        execute(&store, "UPDATE outbox SET available_at = now() WHERE id = 2").await;
        assert_eq!(ids(&claim(&store, &window(9, Some(first.window))).await.messages), [2]);
    }
}

/// A claim sees a head due, and until it has the lock somebody else has tried that head and put it off.
#[tokio::test]
async fn a_head_that_was_put_off_after_a_claim_saw_it_due_is_not_taken() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "b"]).await;
        let held_up = Statement::claim().hold_up(&database, &store).await;
        execute(&store, "UPDATE outbox SET attempts = 1, available_at = now() + interval '1 hour' WHERE id = 1").await;
        assert_eq!(claimed_ids(&held_up.go_on().await), [2]);
    }
}

#[tokio::test]
async fn heads_are_taken_in_the_order_in_which_they_became_due_whatever_their_ids() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "b", "c", "d", "e"]).await;
        execute(&store, "UPDATE outbox SET available_at = now() - id * interval '1 minute'").await;
        let (mut seen, mut earlier) = (Vec::new(), None);
        for _ in 0..3 {
            let claim = claim(&store, &ClaimRequest { batch_size: 2, ..window(3, earlier) }).await;
            seen.push((ids(&claim.messages), claim.window.waiting, claim.window.ended));
            earlier = Some(claim.window);
        }
        assert_eq!(seen, [(vec![4, 5], 0, false), (vec![2, 3], 0, false), (vec![1], 0, true)]);
    }
}

#[tokio::test]
async fn heads_that_a_full_batch_had_no_room_for_are_not_lost_to_others() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "b", "c", "d", "e"]).await;
    minutes_apart(&store).await;
    let full = claim(&store, &ClaimRequest { batch_size: 2, ..window(9, None) }).await;
    assert_eq!((ids(&full.messages), full.window.lost_of_backlog), (vec![1, 2], 0));
}

#[tokio::test]
async fn a_row_larger_than_all_room_is_dealt_with_when_it_was_taken() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "a"]).await;
        of_a_thousand_bytes(&store).await;
        minutes_apart(&store).await;
        let alone = claim(&store, &ClaimRequest { batch_bytes: 1, ..window(9, None) }).await;
        assert_eq!((ids(&alone.messages), alone.window.ended, alone.window.waiting), (vec![1], true, 1));
    }
}

/// Otherwise each claim would step over everything that was finished since.
#[tokio::test]
async fn at_the_end_the_tail_goes_with_the_clock_also_where_nothing_is_found() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a"]).await;
        let mut tails = Vec::new();
        let mut earlier = None;
        for _ in 0..3 {
            let claim = claim(&store, &window(9, earlier)).await;
            assert!(claim.window.ended && claim.window.reached == claim.window.tail);
            tails.push(claim.window.tail);
            earlier = Some(claim.window);
        }
        assert!(tails.is_sorted_by(|before, after| before < after), "{tails:?}");
    }
}

#[tokio::test]
async fn rows_stepped_over_in_the_backlog_cost_the_tail_none() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "b", "c"]).await;
        minutes_apart(&store).await;
        let first = claim(&store, &window(1, None)).await;
        assert_eq!(seed(&store, &[("d", "e")]).await, [4]);
        let look = Look { skip: 1, tail_window: 2, ..Look::after(&first.window, 1) };
        let aside = claim(&store, &ClaimRequest { look, ..window(1, None) }).await;
        assert_eq!((ids(&aside.messages), aside.window.ended), (vec![3, 4], false));
        assert!(aside.window.tail > first.window.tail && aside.window.reached > first.window.reached);
    }
}

/// Payloads at the tail that fill every claim by their bytes must not keep the backlog from being looked at.
#[tokio::test]
async fn a_claim_cut_by_bytes_at_the_tail_has_dealt_with_the_backlog() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "a", "a", "b"]).await;
        execute(&store, "UPDATE outbox SET status = 'dead' WHERE id = 1").await;
        minutes_apart(&store).await;
        let first = claim(&store, &window(1, None)).await;
        assert_eq!((ids(&first.messages), first.window.waiting), (vec![], 1));
        assert_eq!(seed(&store, &[("c", "e"), ("d", "e")]).await, [5, 6]);
        execute(&store, "UPDATE outbox SET payload = to_jsonb(repeat('x', 1000)) WHERE id > 4").await;
        let cut = |earlier| ClaimRequest { batch_bytes: 1_500, ..window(1, Some(earlier)) };
        let cut_claim = claim(
            &store,
            &ClaimRequest { look: Look { tail_window: 9, ..cut(first.window).look }, ..cut(first.window) },
        )
        .await;
        assert_eq!((ids(&cut_claim.messages), cut_claim.window.waiting), (vec![5], 1), "3 waits, 6 has no room");
        assert!(cut_claim.window.reached > first.window.reached, "the backlog goes on");
        let rest = claim(&store, &cut(cut_claim.window)).await;
        assert_eq!(ids(&rest.messages), [4, 6]);
    }
}

/// The batch is full of heads, and there are no bytes for the lease that ran out: neither is a reason to pass the others.
#[tokio::test]
async fn a_takeover_cut_by_bytes_does_not_let_a_full_batch_pass_heads() {
    for (postgres, _) in Postgres::all() {
        let (_database, store) = outbox(postgres, &["a", "b", "c"]).await;
        of_a_thousand_bytes(&store).await;
        minutes_apart(&store).await;
        execute(&store, "UPDATE outbox SET status = 'processing', lease_owner = 'w', lease_until = now() - interval '1 s' WHERE id = 3")
            .await;
        let full = ClaimRequest { batch_size: 2, batch_bytes: 1_500, ..window(9, None) };
        let first = claim(&store, &full).await;
        assert_eq!((ids(&first.messages), first.window.ended), (vec![1], false));
        assert_eq!(ids(&claim(&store, &window(9, Some(first.window))).await.messages), [2]);
        assert_eq!(ids(&claim(&store, &window(9, None)).await.messages), [3]);
    }
}
