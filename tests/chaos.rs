//! Everything that can go wrong at a publisher, at random and all at once, to several dispatchers on one outbox.

mod support;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::{Patience, Trouble};
use ordered_outbox::publisher::{Destination, Limits, RecordingPublisher};
use ordered_outbox::{Dispatcher, DispatcherConfig, Message, MessageId, Outcome, Publisher, Summary};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use support::{Database, eventually, rows, seed};
use tokio_util::sync::CancellationToken;

const AGGREGATES: [&str; 5] = ["a", "aa", "a-", "B", "~"];

/// Fails at random, by a seed. Knows which aggregates it has in hand.
struct Chaos {
    random: Mutex<StdRng>,
    in_hand: Mutex<HashSet<String>>,
    group_batching: u32,
    shared: Arc<Shared>,
}

/// What the publishers of all dispatchers have in common.
struct Shared {
    recording: RecordingPublisher,
    /// Of ten messages, how many meet trouble.
    trouble: AtomicU32,
    /// Whether one dispatcher ever had two requests of one aggregate in flight, or too many messages of it in one.
    twice: AtomicBool,
}

/// The aggregates of one request, until it ends in whatever way.
struct InHand<'a>(&'a Chaos, Vec<String>);

impl<'a> InHand<'a> {
    fn take(chaos: &'a Chaos, messages: &[Message]) -> Self {
        let mut in_hand = chaos.in_hand.lock().unwrap();
        // messages of one aggregate are side by side, and strictly there is only one
        let of_aggregates = messages.chunk_by(|a, b| a.aggregate_id == b.aggregate_id);
        let mut aggregates = Vec::new();
        for of_aggregate in of_aggregates {
            let aggregate_id = of_aggregate[0].aggregate_id.clone();
            if !in_hand.insert(aggregate_id.clone()) || of_aggregate.len() > chaos.group_batching as usize {
                chaos.shared.twice.store(true, Ordering::Relaxed);
            }
            aggregates.push(aggregate_id);
        }
        Self(chaos, aggregates)
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let mut in_hand = self.0.in_hand.lock().unwrap();
        for aggregate_id in &self.1 {
            in_hand.remove(aggregate_id);
        }
    }
}

impl Chaos {
    fn roll(&self, sides: u32) -> u32 {
        self.random.lock().unwrap().random_range(0..sides)
    }

    async fn accept(&self, destination: &Destination, message: &Message) -> Outcome {
        self.shared.recording.publish(destination, std::slice::from_ref(message)).await.remove(0)
    }
}

impl Publisher for Chaos {
    /// By the row, not by the aggregate: one aggregate goes to two queues.
    fn destination(&self, message: &Message) -> Option<Destination> {
        Some(Destination::new(if message.id % 3 == 0 { "odd" } else { "even" }))
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        Limits { entries: 3, bytes: 1 << 20 }
    }

    fn size(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn publish(&self, destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        let _in_hand = InHand::take(self, messages);
        let mut outcomes = Vec::new();
        // nothing goes behind a message of its aggregate that met trouble
        let mut held_back = HashSet::new();
        for message in messages {
            if held_back.contains(&message.aggregate_id) {
                outcomes.push(Outcome::Untried);
                continue;
            }
            tokio::time::sleep(Duration::from_millis(u64::from(self.roll(5)))).await;
            if self.roll(10) >= self.shared.trouble.load(Ordering::Relaxed) {
                outcomes.push(self.accept(destination, message).await);
                continue;
            }
            held_back.insert(&message.aggregate_id);
            let error = "trouble".to_owned();
            match self.roll(16) {
                // accepted, and the reply is lost in one way or another
                0 => {
                    self.accept(destination, message).await;
                    outcomes.push(Outcome::Backoff { error });
                }
                1 => {
                    self.accept(destination, message).await;
                    outcomes.push(Outcome::TimedOut { error });
                }
                2 => {
                    self.accept(destination, message).await;
                    std::future::pending::<()>().await;
                }
                3 => {
                    self.accept(destination, message).await;
                    panic!("a bug after the broker had accepted");
                }
                4 => {
                    self.accept(destination, message).await;
                    outcomes.extend([Outcome::published(), Outcome::published()]);
                }
                5 => outcomes.push(Outcome::Unclassified { error }),
                6 => outcomes.push(Outcome::Unavailable { trouble: Trouble::Network, error }),
                7 => outcomes.push(Outcome::Defer { delay: Duration::from_millis(5), reason: error }),
                8 => {}
                _ => outcomes.push(Outcome::Backoff { error }),
            }
        }
        outcomes
    }
}

fn config(owner: &str, batch_size: u32, run_length: u32, concurrency: u32) -> DispatcherConfig {
    DispatcherConfig {
        owner: owner.into(),
        batch_size,
        run_length,
        concurrency,
        lease: Duration::from_secs(2),
        publish_timeout: Duration::from_millis(200),
        poll_interval: Duration::from_millis(30),
        breaker: Backoff { base: Duration::from_millis(2), cap: Duration::from_millis(10) },
        patience: Patience {
            max_attempts: 1_000,
            backoff: Backoff { base: Duration::from_millis(5), cap: Duration::from_millis(20) },
            ..Patience::default()
        },
        ..DispatcherConfig::default()
    }
}

/// The first acceptance of each message, by aggregate, in the order of acceptance.
fn first_acceptances(recording: &RecordingPublisher) -> BTreeMap<String, Vec<MessageId>> {
    let (mut seen, mut by_aggregate) = (HashSet::new(), BTreeMap::<String, Vec<MessageId>>::new());
    for message in recording.accepted() {
        if seen.insert(message.id) {
            by_aggregate.entry(message.aggregate_id).or_default().push(message.id);
        }
    }
    by_aggregate
}

/// P1, P2; and no permit is lost: three permits leaked would stop the smallest of the dispatchers.
async fn survive(random_seed: u64, messages: usize, group_batching: u32) {
    let database = Database::new().await;
    let store = database.store().await;
    let mut random = StdRng::seed_from_u64(random_seed);
    let picks: Vec<_> = (0..messages).map(|_| (AGGREGATES[random.random_range(0..AGGREGATES.len())], "e")).collect();
    let seeded = seed(&store, &picks).await;
    let mut expected: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
    for ((aggregate, _), id) in picks.iter().zip(&seeded) {
        expected.entry((*aggregate).to_owned()).or_default().push(*id);
    }
    let recording = RecordingPublisher::new();
    let shared =
        Arc::new(Shared { recording: recording.clone(), trouble: AtomicU32::new(4), twice: AtomicBool::new(false) });
    let stop = CancellationToken::new();
    let running: Vec<_> = [(2, 2, 1), (3, 5, 2), (10, 10, 4)]
        .into_iter()
        .enumerate()
        .map(|(worker, (batch_size, run_length, concurrency))| {
            let chaos = Chaos {
                random: Mutex::new(StdRng::seed_from_u64(random_seed + worker as u64)),
                in_hand: Mutex::default(),
                group_batching,
                shared: Arc::clone(&shared),
            };
            let config = config(&format!("w{worker}"), batch_size, run_length, concurrency);
            let config = DispatcherConfig { group_batching, ..config };
            tokio::spawn(Dispatcher::new(store.clone(), chaos, config).unwrap().run(stop.clone()))
        })
        .collect();
    eventually("all are done in spite of it", || async {
        // the slowest trouble takes a lease of 2 s each time
        rows(&store).await.iter().filter(|(_, status, _)| status != "done").count() <= 10
    })
    .await;
    shared.trouble.store(0, Ordering::Relaxed);
    eventually("the rest is done", || async { rows(&store).await.iter().all(|(_, status, _)| status == "done") }).await;
    assert_eq!(first_acceptances(&recording), expected, "seed {random_seed}");

    assert!(!shared.twice.load(Ordering::Relaxed), "too much of one aggregate in flight, seed {random_seed}");

    // quiet now: the very same dispatchers still take whatever comes
    let more = seed(&store, &[("a", "e"); 30]).await;
    eventually("what comes after the chaos is done", || async {
        rows(&store).await.iter().all(|(_, status, _)| status == "done")
    })
    .await;
    let last = &first_acceptances(&recording)["a"];
    assert_eq!(last[last.len() - 30..], more, "seed {random_seed}");
    stop.cancel();
    for dispatcher in running {
        let summary: Summary = dispatcher.await.unwrap().unwrap();
        assert_eq!((summary.dead, summary.order_gaps), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_publisher_does_each_aggregate_is_first_accepted_in_its_order_and_nothing_gets_stuck() {
    let seeds = std::env::var("CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1);
    for random_seed in 0..seeds {
        survive(random_seed, 40, 1).await;
    }
}

/// Messages that share a request are in no danger where the publisher sends none behind a failed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_shared_requests_order_holds_if_the_publisher_holds_back_what_is_behind_a_failure() {
    let seeds = std::env::var("CHAOS_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(1);
    for random_seed in 0..seeds {
        survive(random_seed, 40, 3).await;
    }
}
