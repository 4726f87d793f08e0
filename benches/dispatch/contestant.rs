//! Loops that run until everything deliverable is done.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ordered_outbox::{Dispatcher, DispatcherConfig, Store};
use tokio::task::JoinSet;

use super::support::accepting::{Accepting, Countdown};
use super::support::database::Database;
use super::support::{self, quick_or};

/// What a loop did.
pub(crate) struct Measured {
    pub(crate) rows: u64,
    pub(crate) took: Duration,
    pub(crate) wal_bytes: i64,
    pub(crate) dead_rows: i64,
    pub(crate) updates: i64,
}

impl Measured {
    pub(crate) fn rate(&self) -> f64 {
        self.rows as f64 / self.took.as_secs_f64()
    }
}

/// Measures a loop that returns how many messages it moved; it ends its connections itself.
pub(crate) async fn measured(database: &Database, dispatch: impl Future<Output = (u64, Duration)>) -> Measured {
    let (wal, before) = (database.wal_position().await, database.counted().await);
    let (rows, took) = dispatch.await;
    let wal_bytes = database.wal_position().await - wal;
    let after = database.counted().await;
    Measured {
        rows,
        took,
        wal_bytes,
        dead_rows: after.dead_rows - before.dead_rows,
        updates: after.updates - before.updates,
    }
}

/// The library's dispatchers, each with connections of its own, from the start of all until the last message was accepted
/// and all have stopped, which they do when everything they hold is done.
pub(crate) async fn ours(template: &Database, deliverable: u64, dispatchers: u32, is_settled: bool) -> Measured {
    let database = template.copy().await;
    if is_settled {
        settle(&database.store(1).await).await;
    }
    measured(&database, async {
        let mut stores = Vec::new();
        for _ in 0..dispatchers {
            stores.push(database.store(4).await);
        }
        let countdown = Countdown::from(deliverable);
        let start = Instant::now();
        let mut running = JoinSet::new();
        for store in stores.clone() {
            let publisher = Accepting { latency: Duration::ZERO, countdown: countdown.clone() };
            let dispatcher = Dispatcher::new(store, publisher, DispatcherConfig::default()).unwrap();
            running.spawn(dispatcher.run(countdown.stop.clone()));
        }
        let mut published = 0;
        while let Some(summary) = running.join_next().await {
            published += summary.unwrap().unwrap().published;
        }
        let took = start.elapsed();
        assert_eq!(published, deliverable, "everything deliverable was published, once");
        for store in stores {
            store.pool().close().await;
        }
        (published, took)
    })
    .await
}

/// Parks everything that waits.
async fn settle(store: &Store) {
    let mut from = None;
    loop {
        let parked = store.park(from, 500, Duration::ZERO).await.unwrap();
        from = Some(parked.reached);
        if parked.ended {
            break;
        }
    }
    store.pool().close().await;
}

/// The article's workers: claim, then one update a row. Its claims stop after a while, however much is left.
pub(crate) async fn article(template: &Database, deliverable: u64, workers: u32) -> Measured {
    let database = template.copy().await;
    measured(&database, async {
        let pool = database.plain_pool(workers).await;
        let done: &'static AtomicU64 = Box::leak(Box::default());
        let start = Instant::now();
        let give_up = start + quick_or(Duration::from_secs(2), Duration::from_secs(6));
        let mut running = JoinSet::new();
        for worker in 0..workers {
            let pool = pool.clone();
            running.spawn(async move {
                while done.load(Ordering::Relaxed) < deliverable && Instant::now() < give_up {
                    let claimed = support::article::claim(&pool, &format!("worker-{worker}")).await;
                    if claimed.is_empty() {
                        // the others hold every head; the article's own pause would be longer
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                    for row in claimed {
                        assert!(support::article::mark_done(&pool, row.0, row.1).await);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        running.join_all().await;
        let took = start.elapsed();
        pool.close().await;
        (done.load(Ordering::Relaxed), took)
    })
    .await
}
