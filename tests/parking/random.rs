//! Everything at once: producers, dispatchers, parkers and sweeps at full speed, purges, and people who answer gates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::Patience;
use ordered_outbox::publisher::RecordingPublisher;
use ordered_outbox::{Dispatcher, DispatcherConfig, MessageId, Outcome, Store, Trouble, enqueue_many};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Postgres, eventually, message};
use crate::{outbox, parked, sweep};

/// Rows that a producer commits at once, at most.
const AT_ONCE: usize = 12;

/// What one producer committed for one aggregate, in order.
type Committed = BTreeMap<String, Vec<MessageId>>;

fn config(worker: usize) -> DispatcherConfig {
    let (batch_size, run_length, concurrency) = [(3, 1, 2), (20, 5, 4), (100, 10, 16)][worker];
    DispatcherConfig {
        owner: format!("w{worker}"),
        batch_size,
        run_length,
        concurrency,
        poll_interval: Duration::from_millis(30),
        breaker: Backoff { base: Duration::from_millis(2), cap: Duration::from_millis(10) },
        patience: Patience {
            backoff: Backoff { base: Duration::from_millis(5), cap: Duration::from_millis(20) },
            ..Patience::default()
        },
        ..DispatcherConfig::default()
    }
}

/// Commits for aggregates of its own, so that ids rise in commit order within each. One in three rows is of a hot one.
async fn produce(
    store: Store,
    recording: RecordingPublisher,
    producer: usize,
    rows: usize,
    mut random: StdRng,
) -> Committed {
    let mut committed = Committed::new();
    let mut left = rows;
    while left > 0 {
        let count = random.random_range(1..=AT_ONCE.min(left));
        left -= count;
        let messages: Vec<_> = (0..count)
            .map(|_| if random.random_range(0..3) == 0 { 0 } else { random.random_range(1..40) })
            .map(|n| message(&format!("order-{producer}-{n}"), "e"))
            .collect();
        let mut tx = store.pool().begin().await.unwrap();
        let ids = enqueue_many(&mut tx, &messages).await.unwrap();
        for (message, id) in messages.iter().zip(ids) {
            committed.entry(message.aggregate_id.clone()).or_default().push(id);
            let outcome = match random.random_range(0..60) {
                0 | 1 => Outcome::Backoff { error: "trouble".into() },
                2 => Outcome::Defer { delay: Duration::from_millis(5), reason: "not yet".into() },
                3 => Outcome::Unavailable { trouble: Trouble::Network, error: "down".into() },
                4 => Outcome::Permanent { error: "broken".into() },
                _ => continue,
            };
            recording.script(id, [outcome]);
        }
        if random.random_range(0..10) == 0 {
            // others commit first, with later ids
            tokio::time::sleep(Duration::from_millis(random.random_range(0..30))).await;
        }
        tx.commit().await.unwrap();
    }
    committed
}

/// Repeats `act` until told to stop.
fn again<F: Future<Output = ()> + Send>(
    stop: &CancellationToken,
    act: impl Fn() -> F + Send + 'static,
) -> JoinHandle<()> {
    let stop = stop.clone();
    tokio::spawn(async move {
        while !stop.is_cancelled() {
            act().await;
            tokio::task::yield_now().await;
        }
    })
}

/// Returns what was skipped.
async fn answer_gates(store: &Store, skips: bool) -> Vec<MessageId> {
    let mut skipped = Vec::new();
    for gate in store.gates(0, 100).await.unwrap() {
        // another one may have answered first
        if skips && gate.id % 2 == 0 {
            if store.skip(gate.id, "by chance").await.is_ok() {
                skipped.push(gate.id);
            }
        } else {
            store.retry(gate.id).await.ok();
        }
    }
    skipped
}

/// P1, P2, and nobody is ever left parked.
async fn survive(random_seed: u64, rows_of_a_producer: usize, postgres: Postgres) {
    println!("seed {random_seed}");
    let (_database, store) = outbox(postgres, &[]).await;
    let random = |n: u64| StdRng::seed_from_u64(random_seed.wrapping_mul(31).wrapping_add(n));
    let recording = RecordingPublisher::new();
    let stop = CancellationToken::new();
    let dispatchers: Vec<_> = (0..3)
        .map(|worker| {
            let dispatcher = Dispatcher::new(store.clone(), recording.clone(), config(worker)).unwrap();
            tokio::spawn(dispatcher.run(stop.clone()))
        })
        .collect();
    let is_stranded = Arc::new(AtomicBool::new(false));
    let skipped = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut others = Vec::new();
    for limit in [7, 500] {
        let store = store.clone();
        others.push(again(&stop, move || {
            let store = store.clone();
            async move {
                let mut from = None;
                loop {
                    let parked = store.park(from, limit, Duration::ZERO).await.unwrap();
                    if parked.ended {
                        break;
                    }
                    from = Some(parked.reached);
                }
            }
        }));
    }
    let (sweeper, found) = (store.clone(), Arc::clone(&is_stranded));
    others.push(again(&stop, move || {
        let (sweeper, found) = (sweeper.clone(), Arc::clone(&found));
        async move {
            if !sweep(&sweeper).await.is_empty() {
                found.store(true, Ordering::Relaxed);
            }
        }
    }));
    let (purger, person, answered) = (store.clone(), store.clone(), Arc::clone(&skipped));
    others.push(again(&stop, move || {
        let purger = purger.clone();
        async move {
            purger.purge(Duration::from_millis(300), 50).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }));
    others.push(again(&stop, move || {
        let (person, answered) = (person.clone(), Arc::clone(&answered));
        async move {
            let skipped = answer_gates(&person, true).await;
            answered.lock().unwrap().extend(skipped);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }));
    let producers: Vec<_> = (0..3)
        .map(|n| tokio::spawn(produce(store.clone(), recording.clone(), n, rows_of_a_producer, random(n as u64))))
        .collect();
    let mut expected = Committed::new();
    for producer in producers {
        expected.extend(producer.await.unwrap());
    }
    eventually("nothing is unfinished", || async {
        let unfinished: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox WHERE status <> 'done'")
            .fetch_one(store.pool())
            .await
            .unwrap();
        unfinished == 0
    })
    .await;
    stop.cancel();
    for other in others {
        other.await.unwrap();
    }
    for dispatcher in dispatchers {
        let summary = dispatcher.await.unwrap().unwrap();
        assert_eq!((summary.stranded, summary.order_gaps, summary.lease_lost), (0, 0, 0), "seed {random_seed}");
    }
    assert!(!is_stranded.load(Ordering::Relaxed), "a head was left parked, seed {random_seed}");
    assert_eq!(parked(&store).await, [0; 0]);
    let skipped = skipped.lock().unwrap();
    for ids in expected.values_mut() {
        ids.retain(|id| !skipped.contains(id));
    }
    expected.retain(|_, ids| !ids.is_empty());
    let mut accepted = Committed::new();
    for message in recording.accepted() {
        accepted.entry(message.aggregate_id).or_default().push(message.id);
    }
    assert_eq!(accepted, expected, "seed {random_seed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_runs_at_once_order_holds_everything_is_delivered_and_no_head_is_ever_left_parked() {
    let rounds = std::env::var("CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1);
    for round in 0..rounds {
        for (postgres, _) in Postgres::all() {
            survive(rand::random::<u32>().into(), 400, postgres).await;
            println!("round {round}");
        }
    }
}
