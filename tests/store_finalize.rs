//! Finalize, release, purge and a person's answers: every transition is fenced, and says whether it took place.

mod support;

use std::time::Duration;

use ordered_outbox::outcome::Verdict;
use ordered_outbox::store::{AnswerError, Finalize, Finalized, Release};
use ordered_outbox::{Message, Status, Store};
use support::{Database, execute, expire_leases, ids, make_due, request, rows, seed};

fn done(message: &Message) -> Finalize {
    let verdict = Verdict::Done { broker_message_id: Some("m-1".into()), broker_sequence: Some("18".into()) };
    Finalize::new(message, verdict)
}

async fn claim_all(store: &Store) -> Vec<Message> {
    store.claim(&request("w", 100)).await.unwrap().messages
}

async fn kill(store: &Store) {
    for message in claim_all(store).await {
        store.finalize(&[Finalize::new(&message, Verdict::Dead { error: "broken".into() })]).await.unwrap();
    }
}

#[tokio::test]
async fn one_finalize_writes_every_kind_of_verdict_and_answers_row_by_row() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e"), ("b", "e"), ("c", "e"), ("d", "e"), ("e", "e")]).await;
    let claimed = claim_all(&store).await;
    execute(&store, "UPDATE outbox SET lease_version = lease_version + 1 WHERE id = 3").await;
    let wait = Duration::from_mins(10);
    let verdicts = [
        // not in id order: answers come in the order asked
        Finalize::new(&claimed[3], Verdict::Dead { error: "dead".into() }),
        done(&claimed[0]),
        Finalize::new(&claimed[1], Verdict::Backoff { delay: wait, error: "backoff".into() }),
        done(&claimed[2]),
        Finalize::new(&claimed[4], Verdict::Defer { delay: wait, error: "defer".into() }),
    ];
    let (taken, lost) = (Finalized::Finalized, Finalized::LeaseLost);
    assert_eq!(store.finalize(&verdicts).await.unwrap(), [taken, taken, taken, lost, taken]);
    let expected = [(1, "done", 1), (2, "pending", 1), (3, "processing", 1), (4, "dead", 1), (5, "pending", 0)];
    assert_eq!(rows(&store).await, expected.map(|(id, status, attempts)| (id, status.to_owned(), attempts)));
    let row = store.show(1).await.unwrap().unwrap();
    assert_eq!(
        (row.broker_message_id.as_deref(), row.broker_sequence.as_deref(), row.last_error, row.done_at.is_some()),
        (Some("m-1"), Some("18"), None, true)
    );
    for (id, error) in [(2, "backoff"), (5, "defer")] {
        let row = store.show(id).await.unwrap().unwrap();
        assert_eq!(row.last_error.as_deref(), Some(error));
        assert!(row.available_at > row.created_at + Duration::from_secs(599), "{id}");
    }
}

#[tokio::test]
async fn a_verdict_written_twice_changes_nothing_the_second_time() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e")]).await;
    let claimed = claim_all(&store).await;
    assert_eq!(store.finalize(&[done(&claimed[0])]).await.unwrap(), [Finalized::Finalized]);
    let before = store.show(1).await.unwrap();
    assert_eq!(store.finalize(&[done(&claimed[0])]).await.unwrap(), [Finalized::LeaseLost]);
    assert_eq!(store.show(1).await.unwrap(), before);
    assert_eq!(store.finalize(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn a_released_row_is_due_again_at_once_with_its_attempt_refunded() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e"), ("b", "e")]).await;
    let claimed = claim_all(&store).await;
    let held = [Release::new(&claimed[1]), support::untried(claimed[0].id, claimed[0].lease_version + 1)];
    assert_eq!(store.release(&held).await.unwrap(), [Finalized::Finalized, Finalized::LeaseLost]);
    assert_eq!(rows(&store).await, [(1, "processing".to_owned(), 1), (2, "pending".to_owned(), 0)]);
    let again = claim_all(&store).await;
    assert_eq!((ids(&again), again[0].lease_version), (vec![2], 2), "the version never goes back");
}

/// A stale finalizer and its successor overlap on many rows, given in opposite orders: neither waits for the other.
#[tokio::test]
async fn two_finalizers_on_the_same_rows_do_not_deadlock_and_only_the_current_one_writes() {
    let database = Database::new().await;
    let store = database.store().await;
    let names: Vec<_> = (0..200).map(|n| format!("order-{n}")).collect();
    seed(&store, &names.iter().map(|name| (name.as_str(), "e")).collect::<Vec<_>>()).await;
    let request = ordered_outbox::store::ClaimRequest { batch_size: 200, ..request("w", 200) };
    let stale: Vec<_> = store.claim(&request).await.unwrap().messages.iter().map(done).collect();
    for _ in 0..10 {
        expire_leases(&store).await;
        let current = store.claim(&request).await.unwrap().messages;
        let mut verdicts: Vec<_> = current
            .iter()
            .map(|message| Finalize::new(message, Verdict::Defer { delay: Duration::ZERO, error: "again".into() }))
            .collect();
        verdicts.reverse();
        let (old, new) = tokio::join!(store.finalize(&stale), store.finalize(&verdicts));
        assert!(old.unwrap().iter().all(|answer| *answer == Finalized::LeaseLost));
        // the stale one may have had some of them locked just then
        let busy: Vec<_> = verdicts
            .iter()
            .zip(new.unwrap())
            .filter(|(_, answer)| *answer != Finalized::Finalized)
            .map(|(verdict, answer)| {
                assert_eq!(answer, Finalized::Busy);
                verdict.clone()
            })
            .collect();
        assert!(store.finalize(&busy).await.unwrap().iter().all(|answer| *answer == Finalized::Finalized));
        make_due(&store).await;
        store.claim(&request).await.unwrap();
    }
}

/// P3: what the reaper declared dead stays dead, whatever its old holder says.
#[tokio::test]
async fn a_row_that_was_reaped_is_not_handed_back() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e")]).await;
    let claimed = claim_all(&store).await;
    expire_leases(&store).await;
    assert_eq!(store.reap(1, 10).await.unwrap(), [1]);
    assert_eq!(store.release(&[support::untried(1, claimed[0].lease_version)]).await.unwrap(), [Finalized::LeaseLost]);
    assert_eq!(rows(&store).await, [(1, "dead".to_owned(), 1)]);
}

/// Not lost and not waited for: the caller asks again.
#[tokio::test]
async fn a_row_that_somebody_else_has_locked_is_busy_and_its_neighbours_are_written() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e"), ("b", "e"), ("c", "e"), ("d", "e")]).await;
    let claimed = claim_all(&store).await;
    let held: Vec<_> = claimed[2..].iter().map(Release::new).collect();
    let mut person = store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM outbox WHERE id IN (1, 3) FOR UPDATE").execute(&mut *person).await.unwrap();
    let verdicts = [done(&claimed[0]), done(&claimed[1])];
    let (busy, taken, lost) = (Finalized::Busy, Finalized::Finalized, Finalized::LeaseLost);
    assert_eq!(store.finalize(&verdicts).await.unwrap(), [busy, taken]);
    assert_eq!(store.release(&held).await.unwrap(), [busy, taken]);
    let stale = Finalize { lease_version: 0, ..verdicts[0].clone() };
    assert_eq!(store.finalize(&[stale]).await.unwrap(), [lost], "busy is only what is still held");
    person.rollback().await.unwrap();
    assert_eq!(store.finalize(&verdicts).await.unwrap(), [taken, lost]);
    assert_eq!(store.release(&held).await.unwrap(), [taken, lost]);
}

// C09, C24
#[tokio::test]
async fn a_gate_is_listed_with_what_waits_and_opens_by_retry_or_skip_and_only_then() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "OrderPlaced"), ("b", "OrderPlaced")]).await;
    kill(&store).await;
    let [a2, _a3, _b2] = seed(&store, &[("a", "e"), ("a", "e"), ("b", "e")]).await[..] else { panic!() };
    let gates = store.gates(0, 10).await.unwrap();
    let listed: Vec<_> = gates.iter().map(|gate| (gate.id, gate.aggregate_id.as_str(), gate.waiting)).collect();
    assert_eq!(listed, [(1, "a", 2), (2, "b", 1)]);
    assert_eq!(gates[0].last_error.as_deref(), Some("broken"));
    let next_page: Vec<_> = store.gates(1, 10).await.unwrap().iter().map(|gate| gate.id).collect();
    assert_eq!(next_page, [2], "the next page begins after the id given");
    assert_eq!(ids(&claim_all(&store).await), [0; 0]);

    store.skip(1, "customer was refunded by hand").await.unwrap();
    assert_eq!(ids(&claim_all(&store).await), [a2], "at once");
    let skipped = store.show(1).await.unwrap().unwrap();
    assert_eq!((skipped.status, skipped.skip_reason.as_deref()), (Status::Done, Some("customer was refunded by hand")));
    assert_eq!(skipped.broker_message_id, None, "never sent");

    store.retry(2).await.unwrap();
    let again = claim_all(&store).await;
    assert_eq!((ids(&again), again[0].attempts), (vec![2], 1), "attempts afresh");
}

#[tokio::test]
async fn only_a_dead_row_can_be_answered_and_the_refusal_names_the_state() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e"), ("b", "e"), ("c", "e")]).await;
    let claimed = claim_all(&store).await;
    store.finalize(&[done(&claimed[0])]).await.unwrap();
    store.release(&[support::untried(claimed[1].id, claimed[1].lease_version)]).await.unwrap();
    let before = rows(&store).await;
    for (id, state) in [(1, "done"), (2, "pending"), (3, "processing")] {
        let expected = format!("message {id} is {state}, not dead: only a dead message can be retried or skipped");
        assert_eq!(store.retry(id).await.unwrap_err().to_string(), expected);
        assert_eq!(store.skip(id, "why").await.unwrap_err().to_string(), expected);
    }
    assert!(matches!(store.retry(99).await, Err(AnswerError::Unknown(99))));
    assert_eq!(rows(&store).await, before);
}

#[tokio::test]
async fn a_purge_deletes_old_done_rows_in_bounded_batches_and_nothing_else() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e"), ("b", "e"), ("c", "e"), ("d", "e"), ("gated", "e"), ("gated", "e")]).await;
    let claimed = claim_all(&store).await;
    store.finalize(&claimed[..4].iter().map(done).collect::<Vec<_>>()).await.unwrap();
    store.finalize(&[Finalize::new(&claimed[4], Verdict::Dead { error: "broken".into() })]).await.unwrap();
    execute(&store, "UPDATE outbox SET done_at = now() - interval '8 days' WHERE id <= 3").await;
    execute(&store, "UPDATE outbox SET created_at = now() - interval '1 year'").await;
    let week = Duration::from_hours(168);
    assert_eq!(store.purge(week, 2).await.unwrap(), 2);
    assert_eq!(store.purge(week, 2).await.unwrap(), 1);
    assert_eq!(store.purge(week, 2).await.unwrap(), 0);
    let left: Vec<_> = rows(&store).await.into_iter().map(|(id, status, _)| (id, status)).collect();
    assert_eq!(left, [(4, "done".to_owned()), (5, "dead".to_owned()), (6, "pending".to_owned())]);
}

#[tokio::test]
async fn stats_count_what_flows_and_what_waits() {
    let database = Database::new().await;
    let store = database.store().await;
    let stats = store.stats().await.unwrap();
    assert_eq!(stats.depth.iter().map(|depth| depth.count).collect::<Vec<_>>(), [0, 0, 0, 0]);
    assert_eq!((stats.oldest_undelivered_seconds, stats.attempts.len()), (None, 0));

    seed(&store, &[("a", "e"), ("b", "e"), ("c", "e")]).await;
    let claimed = claim_all(&store).await;
    store.finalize(&[Finalize::new(&claimed[0], Verdict::Dead { error: "broken".into() })]).await.unwrap();
    let backoff = Verdict::Backoff { delay: Duration::from_mins(10), error: "later".into() };
    store.finalize(&[Finalize::new(&claimed[1], backoff)]).await.unwrap();
    expire_leases(&store).await;
    seed(&store, &[("a", "e"), ("a", "e"), ("b", "e"), ("d", "e")]).await;
    let stats = store.stats().await.unwrap();
    let depth: Vec<_> = stats.depth.iter().map(|depth| (depth.status.as_str(), depth.count)).collect();
    assert_eq!(depth, [("pending", 5), ("processing", 1), ("done", 0), ("dead", 1)]);
    assert!(stats.oldest_undelivered_seconds.unwrap() > 0.0);
    assert_eq!((stats.expired_leases, stats.not_yet_due), (1, 1));
    assert_eq!((stats.gated_aggregates, stats.waiting_behind_gates, stats.waiting_behind_not_yet_due), (1, 2, 1));
    let attempts: Vec<_> = stats.attempts.iter().map(|spent| (spent.attempts, spent.count)).collect();
    assert_eq!(attempts, [(0, 4), (1, 2)]);
}

// C17
#[tokio::test]
async fn two_outboxes_have_different_source_names_and_each_keeps_its_own() {
    let (one, two) = (Database::new().await, Database::new().await);
    let source = one.store().await.source().await.unwrap();
    assert_eq!(source, one.store().await.source().await.unwrap());
    assert_ne!(source, two.store().await.source().await.unwrap());
    assert!(source.len() == 12 && source.chars().all(|c| c.is_ascii_alphanumeric()), "{source}");
}
