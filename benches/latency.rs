//! From a producer's commit to the publisher's acceptance, at 500 messages a second over 1,000 aggregates.

#[path = "support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ordered_outbox::outcome::Outcome;
use ordered_outbox::publisher::{Destination, Limits};
use ordered_outbox::{Dispatcher, DispatcherConfig, Message, MessageId, NewMessage, Publisher, enqueue};
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use support::accepting::{SQS, accepted};
use support::database::Database;
use support::report::Report;
use support::samples::{Samples, ms};
use support::table::Table;
use support::{progress, quick_or};

const RATE: u32 = 500;
const AGGREGATES: u32 = 1_000;
/// Transactions under way at a time: one alone waits for the disk at every commit.
const PRODUCERS: u32 = 4;

type Acceptances = Arc<Mutex<Vec<(MessageId, Instant)>>>;

/// Accepts at once, and remembers when.
struct Noting(Acceptances);

impl Publisher for Noting {
    fn destination(&self, _message: &Message) -> Option<Destination> {
        Some(Destination::new("noting"))
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        SQS
    }

    fn size(&self, message: &Message) -> usize {
        message.size_bytes()
    }

    async fn publish(&self, _destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        let now = Instant::now();
        self.0.lock().unwrap().extend(messages.iter().map(|message| (message.id, now)));
        vec![accepted(); messages.len()]
    }
}

/// One committed message.
struct Commit {
    id: MessageId,
    sent: Instant,
    acknowledged: Instant,
}

fn main() {
    support::run(async {
        let mut report = Report::new("latency");
        let run_length = quick_or(Duration::from_secs(8), Duration::from_mins(1));
        let scenario = format!("{RATE} messages/s for {} s over 1,000 aggregates", run_length.as_secs());
        let database = Database::load(&Table::empty()).await;
        let _progress = progress::step(&scenario);
        let acceptances = Acceptances::default();
        let store = database.store(4).await;
        let dispatcher =
            Dispatcher::new(store.clone(), Noting(Arc::clone(&acceptances)), DispatcherConfig::default()).unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(dispatcher.run(stop.clone()));
        let start = Instant::now();
        let commits = produce(&database, RATE * run_length.as_secs() as u32).await;
        let produced = start.elapsed();
        let deadline = Instant::now() + Duration::from_mins(1);
        while acceptances.lock().unwrap().len() < commits.len() {
            assert!(Instant::now() < deadline, "not everything was accepted");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        running.await.unwrap().unwrap();
        store.pool().close().await;
        write(&mut report, &scenario, &commits, &acceptances.lock().unwrap());
        report.row(&scenario, "producers' rate reached", commits.len() as f64 / produced.as_secs_f64(), "messages/s");
        report.write();
    });
}

async fn produce(database: &Database, messages: u32) -> Vec<Commit> {
    let pool = database.plain_pool(PRODUCERS).await;
    let mut producers = JoinSet::new();
    for producer in 0..PRODUCERS {
        producers.spawn(produce_every_fourth(pool.clone(), producer, messages));
    }
    let commits = producers.join_all().await.into_iter().flatten().collect();
    pool.close().await;
    commits
}

/// A producer's share of the messages, each in a transaction of its own, at its share of the rate.
async fn produce_every_fourth(pool: PgPool, producer: u32, messages: u32) -> Vec<Commit> {
    let period = Duration::from_secs(1) * PRODUCERS / RATE;
    tokio::time::sleep(period * producer / PRODUCERS).await;
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut commits = Vec::new();
    for number in (producer..messages).step_by(PRODUCERS as usize) {
        ticks.tick().await;
        let aggregate = format!("order-{}", number % AGGREGATES);
        let message = NewMessage::from_json("order", aggregate, "OrderPlaced", r#"{"amount": 1}"#);
        let mut tx = pool.begin().await.unwrap();
        let id = enqueue(&mut tx, &message).await.unwrap();
        let sent = Instant::now();
        tx.commit().await.unwrap();
        commits.push(Commit { id, sent, acknowledged: Instant::now() });
    }
    commits
}

fn write(report: &mut Report, scenario: &str, commits: &[Commit], acceptances: &[(MessageId, Instant)]) {
    let mut accepted = acceptances.to_vec();
    accepted.sort_unstable();
    let since = |from: fn(&Commit) -> Instant| {
        let mut samples = Samples::default();
        samples.extend(commits.iter().map(|commit| {
            let at = accepted.binary_search_by_key(&commit.id, |(id, _)| *id).expect("it was accepted");
            // accepted before the producer heard of its commit: no time at all
            ms(accepted[at].1.saturating_duration_since(from(commit)))
        }));
        samples
    };
    for (what, samples) in [
        ("commit acknowledged to accepted", since(|commit| commit.acknowledged)),
        ("commit sent to accepted", since(|commit| commit.sent)),
    ] {
        report.row(scenario, &format!("{what}, p50"), samples.median(), "ms");
        report.row(scenario, &format!("{what}, p99"), samples.percentile(99), "ms");
    }
    report.row(scenario, "samples", commits.len() as f64, "");
}
