//! Parking: rows that wait leave the index of due rows, and are back as soon as nothing is in front of them. Whatever a
//! parker, a finalizer, a person and a sweep do at the same moment, in whichever order.

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod finalizing;
mod flags;
mod random;
mod statement;
mod sweeping;
mod windows;

use std::time::Duration;

use ordered_outbox::outcome::Verdict;
use ordered_outbox::store::{ClaimRequest, Finalize, Finalized};
use ordered_outbox::{Message, MessageId, Store};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use support::{Database, Postgres, ids, request, seed};

/// An outbox with messages of these aggregates, ids from 1 on.
async fn outbox(postgres: Postgres, aggregates: &[&str]) -> (Database, Store) {
    let database = Database::on(postgres).await;
    // what waits for a lock that it should not wait for is to fail, not to hang
    let name = database.url().rsplit('/').next().unwrap();
    let sql = format!("ALTER DATABASE {name} SET lock_timeout = '25s'");
    sqlx::query(AssertSqlSafe(sql)).execute(&mut connect(&database).await).await.unwrap();
    let store = database.store().await;
    let messages: Vec<_> = aggregates.iter().map(|aggregate| (*aggregate, "e")).collect();
    if !messages.is_empty() {
        seed(&store, &messages).await;
    }
    (database, store)
}

/// A connection of its own, as a person or another process has one.
async fn connect(database: &Database) -> PgConnection {
    PgConnection::connect(database.url()).await.unwrap()
}

/// Claims heads only.
async fn claim(store: &Store) -> Vec<Message> {
    store.claim(&request("w", 100)).await.unwrap().messages
}

/// Claims heads with up to nine rows behind each.
async fn claim_runs(store: &Store) -> Vec<Message> {
    store.claim(&ClaimRequest { run_length: 10, ..request("w", 100) }).await.unwrap().messages
}

/// Claims heads only; their ids.
async fn claimed(store: &Store) -> Vec<MessageId> {
    ids(&claim(store).await)
}

fn done(message: &Message) -> Finalize {
    Finalize::new(message, Verdict::Done { broker_message_id: None, broker_sequence: None })
}

async fn finalize(store: &Store, verdict: Finalize) -> Finalized {
    store.finalize(&[verdict]).await.unwrap()[0]
}

/// Claims every head and declares it dead.
async fn kill_heads(store: &Store) {
    for message in claim(store).await {
        let dead = Finalize::new(&message, Verdict::Dead { error: "broken".into() });
        assert_eq!(finalize(store, dead).await, Finalized::Finalized);
    }
}

/// Parks whatever waits; returns how many rows.
async fn park(store: &Store) -> u64 {
    store.park(None, 500, Duration::ZERO).await.unwrap().rows
}

/// What a sweep over everything finds.
async fn sweep(store: &Store) -> Vec<MessageId> {
    store.sweep("", 1_000).await.unwrap().stranded
}

/// The parked rows, by id.
async fn parked(store: &Store) -> Vec<MessageId> {
    sqlx::query_scalar("SELECT id FROM outbox WHERE status = 'pending' AND parked ORDER BY id")
        .fetch_all(store.pool())
        .await
        .unwrap()
}

/// Claims and finalizes heads until there are none; the ids in that order.
async fn deliver(store: &Store) -> Vec<MessageId> {
    let mut delivered = Vec::new();
    loop {
        let heads = claim(store).await;
        if heads.is_empty() {
            return delivered;
        }
        for message in heads {
            assert_eq!(finalize(store, done(&message)).await, Finalized::Finalized);
            delivered.push(message.id);
        }
    }
}
