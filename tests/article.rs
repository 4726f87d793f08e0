//! The table of tests of the article this design rests on: concurrency, crashes, lost leases, classes of failure.
//!
//! A crash is a claim that is never finalized: it leaves exactly the row a killed process leaves.

mod support;

use std::collections::HashMap;
use std::time::Duration;

use futures::future::join_all;
use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::{Patience, Verdict};
use ordered_outbox::publisher::RecordingPublisher;
use ordered_outbox::store::{ClaimRequest, Finalize, Finalized};
use ordered_outbox::{Dispatcher, DispatcherConfig, Message, MessageId, Outcome, Store};
use support::{Database, execute, expire_leases, ids, make_due, request, rows, seed};
use tokio_util::sync::CancellationToken;

const DONE: Verdict = Verdict::Done { broker_message_id: None, broker_sequence: None };

async fn finalize(store: &Store, message: &Message, verdict: Verdict) -> Finalized {
    store.finalize(&[Finalize::new(message, verdict)]).await.unwrap()[0]
}

/// One message to each of `count` aggregates.
async fn seed_aggregates(store: &Store, count: usize) -> Vec<MessageId> {
    let names: Vec<_> = (0..count).map(|n| format!("order-{n}")).collect();
    let messages: Vec<_> = names.iter().map(|name| (name.as_str(), "OrderPlaced")).collect();
    seed(store, &messages).await
}

/// Claims the one due row, which must be `id`.
async fn claim_one(store: &Store, owner: &str, id: MessageId) -> Message {
    let mut claimed = store.claim(&request(owner, 10)).await.unwrap().messages;
    assert_eq!(ids(&claimed), [id], "{owner}");
    claimed.remove(0)
}

#[tokio::test]
async fn four_workers_claim_200_rows_at_once_and_none_twice() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded = seed_aggregates(&store, 200).await;
    let workers = (0..4).map(|worker| {
        let store = store.clone();
        async move {
            let mut mine = Vec::new();
            loop {
                let claimed = store.claim(&request(&format!("w{worker}"), 7)).await.unwrap().messages;
                assert!(claimed.len() <= 7);
                if claimed.is_empty() {
                    // rows another worker had locked may still be there: done only when the table says so
                    if rows(&store).await.iter().all(|(_, status, _)| status == "processing") {
                        return mine;
                    }
                    continue;
                }
                mine.extend(ids(&claimed));
            }
        }
    });
    let mut claimed: Vec<MessageId> = join_all(workers).await.concat();
    assert_eq!(claimed.len(), 200);
    // which worker gets which row is free, and so is the order between them
    claimed.sort_unstable();
    assert_eq!(claimed, seeded);
}

/// Why there is a lease: row locks end at COMMIT, so two workers that select, commit and then publish both publish.
#[tokio::test]
async fn a_dispatcher_without_a_lease_publishes_every_message_twice() {
    async fn select_and_commit(store: &Store) -> Vec<MessageId> {
        let mut tx = store.pool().begin().await.unwrap();
        let picked = sqlx::query_scalar(
            "SELECT id FROM outbox WHERE status = 'pending' ORDER BY id LIMIT 50 FOR UPDATE SKIP LOCKED",
        )
        .fetch_all(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
        picked
    }
    let database = Database::new().await;
    let store = database.store().await;
    let seeded = seed_aggregates(&store, 3).await;
    let mut published: HashMap<MessageId, u32> = HashMap::new();
    let a = select_and_commit(&store).await;
    // A is slow to publish; B comes by
    let b = select_and_commit(&store).await;
    for id in a.into_iter().chain(b) {
        *published.entry(id).or_default() += 1;
    }
    assert_eq!(published, seeded.iter().map(|id| (*id, 2)).collect());

    // the same schedule with a lease
    assert_eq!(ids(&store.claim(&request("a", 50)).await.unwrap().messages), seeded);
    assert_eq!(store.claim(&request("b", 50)).await.unwrap().messages, []);
}

#[tokio::test]
async fn four_dispatchers_publish_100_messages_once_each_and_all_are_done() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded = seed_aggregates(&store, 100).await;
    let publisher = RecordingPublisher::new();
    let dispatchers = (0..4).map(|worker| {
        let config = DispatcherConfig { owner: format!("w{worker}"), batch_size: 7, ..DispatcherConfig::default() };
        Dispatcher::new(store.clone(), publisher.clone(), config).unwrap().drain(CancellationToken::new())
    });
    let count: u64 = join_all(dispatchers).await.into_iter().map(|summary| summary.unwrap().published).sum();
    assert_eq!(count, 100);
    let mut accepted = publisher.accepted_ids();
    accepted.sort_unstable();
    assert_eq!(accepted, seeded);
    assert_eq!(rows(&store).await, seeded.iter().map(|id| (*id, "done".to_owned(), 1)).collect::<Vec<_>>());
}

/// P4: the timeline of a worker that stalls past its lease.
#[tokio::test]
async fn a_worker_whose_lease_was_taken_over_cannot_finalize() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("order-1", "OrderPlaced")]).await[0];
    let a = claim_one(&store, "a", id).await;
    assert_eq!(store.claim(&request("b", 10)).await.unwrap().messages, [], "the lease holds");
    expire_leases(&store).await;
    let b = claim_one(&store, "b", id).await;
    assert_eq!((b.lease_version, b.attempts), (a.lease_version + 1, 2));
    for verdict in [
        DONE,
        Verdict::Dead { error: "stale".into() },
        Verdict::Backoff { delay: Duration::ZERO, error: "stale".into() },
        Verdict::Defer { delay: Duration::ZERO, error: "stale".into() },
    ] {
        assert_eq!(finalize(&store, &a, verdict).await, Finalized::LeaseLost);
    }
    assert_eq!(store.release(&[support::untried(a.id, a.lease_version)]).await.unwrap(), [Finalized::LeaseLost]);
    let row = store.show(id).await.unwrap().unwrap();
    assert_eq!((row.lease_owner.as_deref(), row.last_error), (Some("b"), None), "b's row is untouched");
    assert_eq!(finalize(&store, &b, DONE).await, Finalized::Finalized);
    assert_eq!(finalize(&store, &a, DONE).await, Finalized::LeaseLost);
    assert_eq!(rows(&store).await, [(id, "done".to_owned(), 2)]);
}

/// P4: the version decides, not the clock.
#[tokio::test]
async fn a_lease_that_ran_out_and_that_nobody_took_over_still_finalizes() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("order-1", "OrderPlaced")]).await[0];
    let a = claim_one(&store, "a", id).await;
    expire_leases(&store).await;
    assert_eq!(finalize(&store, &a, DONE).await, Finalized::Finalized);
    assert_eq!(rows(&store).await, [(id, "done".to_owned(), 1)]);
}

#[tokio::test]
async fn a_message_that_fails_three_times_of_three_is_dead() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("order-1", "OrderPlaced")]).await[0];
    let patience = Patience { max_attempts: 3, ..Patience::default() };
    for (attempts, status) in [(1, "pending"), (2, "pending"), (3, "dead")] {
        let message = claim_one(&store, "w", id).await;
        let failure = Outcome::Backoff { error: "no answer".into() };
        let verdict = patience.verdict(&message, failure, Duration::ZERO).unwrap();
        assert_eq!(finalize(&store, &message, verdict).await, Finalized::Finalized);
        assert_eq!(rows(&store).await, [(id, status.to_owned(), attempts)]);
        make_due(&store).await;
    }
    let row = store.show(id).await.unwrap().unwrap();
    assert_eq!(row.last_error.as_deref(), Some("retries exhausted after 3 attempts: no answer"));
    assert_eq!(store.claim(&request("w", 10)).await.unwrap().messages, []);
}

#[tokio::test]
async fn a_deferred_message_waits_and_keeps_its_attempts() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("order-1", "OrderPlaced")]).await[0];
    let message = claim_one(&store, "w", id).await;
    let defer = Outcome::Defer { delay: Duration::from_hours(1), reason: "no account yet".into() };
    let verdict = Patience::default().verdict(&message, defer, Duration::ZERO).unwrap();
    assert_eq!(finalize(&store, &message, verdict).await, Finalized::Finalized);
    assert_eq!(rows(&store).await, [(id, "pending".to_owned(), 0)]);
    let wait: f64 = sqlx::query_scalar("SELECT extract(epoch FROM available_at - now())::float8 FROM outbox")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert!((3590.0..=3600.0).contains(&wait), "{wait}");
    assert_eq!(store.claim(&request("w", 10)).await.unwrap().messages, [], "not due yet");
}

#[tokio::test]
async fn a_permanent_failure_is_dead_at_once() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("order-1", "OrderPlaced")]).await[0];
    let message = claim_one(&store, "w", id).await;
    let failure = Outcome::Permanent { error: "illegal character".into() };
    let verdict = Patience::default().verdict(&message, failure, Duration::ZERO).unwrap();
    assert_eq!(finalize(&store, &message, verdict).await, Finalized::Finalized);
    assert_eq!(rows(&store).await, [(id, "dead".to_owned(), 1)]);
}

#[tokio::test]
async fn a_message_that_kills_its_worker_three_times_of_three_is_dead_and_never_claimed_again() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("order-1", "OrderPlaced")]).await[0];
    let request = ClaimRequest { max_attempts: 3, ..request("w", 10) };
    for attempts in 1..=3 {
        assert_eq!(store.reap(3, 10).await.unwrap(), [0; 0], "attempts are left");
        assert_eq!(ids(&store.claim(&request).await.unwrap().messages), [id]);
        assert_eq!(rows(&store).await, [(id, "processing".to_owned(), attempts)]);
        expire_leases(&store).await;
    }
    assert_eq!(store.claim(&request).await.unwrap().messages, [], "no attempts are left");
    assert_eq!(store.reap(3, 10).await.unwrap(), [id]);
    let row = store.show(id).await.unwrap().unwrap();
    assert_eq!((row.status.as_str(), row.attempts), ("dead", 3));
    assert_eq!(row.last_error.as_deref(), Some("lease expired after max attempts (worker crash?)"));
    assert_eq!(store.claim(&request).await.unwrap().messages, []);
    assert_eq!(store.reap(3, 10).await.unwrap(), [0; 0]);
}

/// The exception to "a lease nobody took over still finalizes": after the last attempt the row may be reaped.
#[tokio::test]
async fn after_its_last_attempt_a_slow_worker_finds_its_message_dead_although_it_was_sent() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("order-1", "OrderPlaced")]).await[0];
    let last = store.claim(&ClaimRequest { max_attempts: 1, ..request("w", 10) }).await.unwrap().messages.remove(0);
    assert_eq!(store.reap(1, 10).await.unwrap(), [0; 0], "the lease holds");
    expire_leases(&store).await;
    assert_eq!(store.reap(1, 10).await.unwrap(), [id]);
    assert_eq!(finalize(&store, &last, DONE).await, Finalized::LeaseLost);
    assert_eq!(rows(&store).await, [(id, "dead".to_owned(), 1)]);
}

#[tokio::test]
async fn a_claim_takes_only_heads_and_the_next_one_after_the_head_is_done() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded =
        seed(&store, &[("order-x", "1"), ("order-x", "2"), ("order-y", "1"), ("order-x", "3"), ("order-y", "2")]).await;
    let [x1, x2, y1, x3, y2] = seeded[..] else { panic!() };
    let first = store.claim(&request("w", 10)).await.unwrap().messages;
    assert_eq!(ids(&first), [x1, y1]);
    assert_eq!(store.claim(&request("w", 10)).await.unwrap().messages, []);
    finalize(&store, &first[0], DONE).await;
    let second = store.claim(&request("w", 10)).await.unwrap().messages;
    assert_eq!(ids(&second), [x2]);
    finalize(&store, &second[0], DONE).await;
    finalize(&store, &first[1], DONE).await;
    assert_eq!(ids(&store.claim(&request("w", 10)).await.unwrap().messages), [x3, y2]);
}

/// P2
#[tokio::test]
async fn four_dispatchers_publish_and_finalize_one_aggregate_in_exact_order() {
    let database = Database::new().await;
    let store = database.store().await;
    // the trail of the finalizes themselves, written by the database
    execute(&store, "CREATE TABLE trail (place bigserial, id bigint)").await;
    execute(
        &store,
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO trail (id) VALUES (NEW.id); RETURN NULL; END $$",
    )
    .await;
    execute(
        &store,
        "CREATE TRIGGER note AFTER UPDATE ON outbox FOR EACH ROW WHEN (NEW.status = 'done') EXECUTE FUNCTION note()",
    )
    .await;
    let seeded = seed(&store, &[("order-1", "e"); 30]).await;
    let publisher = RecordingPublisher::new();
    let stop = CancellationToken::new();
    let dispatchers = (0..4).map(|worker| {
        let config = DispatcherConfig {
            owner: format!("w{worker}"),
            run_length: 1,
            poll_interval: Duration::from_millis(20),
            breaker: Backoff { base: Duration::from_millis(2), cap: Duration::from_millis(10) },
            ..DispatcherConfig::default()
        };
        tokio::spawn(Dispatcher::new(store.clone(), publisher.clone(), config).unwrap().run(stop.clone()))
    });
    let dispatchers: Vec<_> = dispatchers.collect();
    support::eventually("all 30 are done", || async {
        rows(&store).await.iter().all(|(_, status, _)| status == "done")
    })
    .await;
    stop.cancel();
    for dispatcher in dispatchers {
        dispatcher.await.unwrap().unwrap();
    }
    assert_eq!(publisher.accepted_ids(), seeded);
    let trail: Vec<MessageId> =
        sqlx::query_scalar("SELECT id FROM trail ORDER BY place").fetch_all(store.pool()).await.unwrap();
    assert_eq!(trail, seeded);
}
