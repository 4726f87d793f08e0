//! What every test file shares. Each test has a database of its own, cloned from a migrated template.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]
#![allow(unreachable_pub, reason = "compiled into every test file as a private module")]

pub mod database;
pub mod queue;
pub mod sqs;

pub use database::{Database, Postgres};

use std::time::Duration;

use ordered_outbox::store::{ClaimRequest, Look, Release};
use ordered_outbox::{Message, MessageId, NewMessage, Store, enqueue_many};

/// A lease long enough that no test sees it end by itself.
pub const LEASE: Duration = Duration::from_mins(2);

/// A message of this aggregate whose event type is `event`.
pub fn message(aggregate_id: &str, event: &str) -> NewMessage {
    NewMessage::from_json("order", aggregate_id, event, format!(r#"{{"event": "{event}"}}"#))
}

/// Commits one message an (aggregate, event) pair, in order; returns the ids.
pub async fn seed(store: &Store, messages: &[(&str, &str)]) -> Vec<MessageId> {
    let messages: Vec<_> = messages.iter().map(|(aggregate, event)| message(aggregate, event)).collect();
    let mut tx = store.pool().begin().await.unwrap();
    let ids = enqueue_many(&mut tx, &messages).await.unwrap();
    tx.commit().await.unwrap();
    ids
}

/// A claim by `owner` of up to `batch_size` heads, one row of an aggregate.
pub fn request(owner: &str, batch_size: u32) -> ClaimRequest {
    ClaimRequest {
        owner: owner.into(),
        lease: LEASE,
        max_attempts: 12,
        batch_size,
        batch_bytes: 1 << 30,
        run_length: 1,
        fill_up_to: batch_size,
        look: Look::from_the_front(1_000),
        except: Vec::new(),
    }
}

/// The ids, in the order given.
pub fn ids(messages: &[Message]) -> Vec<MessageId> {
    messages.iter().map(|message| message.id).collect()
}

/// Lets every lease held so far run out, as if its time had passed.
pub async fn expire_leases(store: &Store) {
    execute(store, "UPDATE outbox SET lease_until = now() - interval '1 second' WHERE status = 'processing'").await;
}

/// Makes every pending row due, as if its backoff had passed.
pub async fn make_due(store: &Store) {
    execute(store, "UPDATE outbox SET available_at = now() WHERE status = 'pending'").await;
}

/// Runs one statement by hand; returns the rows it touched.
pub async fn execute(store: &Store, sql: &'static str) -> u64 {
    sqlx::query(sql).execute(store.pool()).await.unwrap().rows_affected()
}

/// `id status attempts` of every row, by id.
pub async fn rows(store: &Store) -> Vec<(MessageId, String, i32)> {
    sqlx::query_as("SELECT id, status, attempts FROM outbox ORDER BY id").fetch_all(store.pool()).await.unwrap()
}

/// Waits until `check` holds; fails after 30 s. For what other tasks and processes do, never to order things.
pub async fn eventually<F: Future<Output = bool>>(what: &str, check: impl Fn() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !check().await {
        assert!(tokio::time::Instant::now() < deadline, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Hands this lease back untried, as if the claim had been the first of its row.
pub fn untried(id: MessageId, lease_version: i64) -> Release {
    Release { id, lease_version, is_first_try: true }
}
