//! Group batching: consecutive messages of an aggregate in one request, and what it trades.

mod support;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::{Patience, Trouble};
use ordered_outbox::publisher::sqs::{Routes, SqsPublisher};
use ordered_outbox::publisher::{Destination, Limits, RecordingPublisher};
use ordered_outbox::{Dispatcher, DispatcherConfig, Message, MessageId, Outcome, Publisher, Store, Summary};
use support::queue::{Queue, Received};
use support::{Database, eventually, rows, seed};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Up to `group_batching` messages of an aggregate in a request; short waits, so that what must come again comes soon.
fn config(group_batching: u32) -> DispatcherConfig {
    DispatcherConfig {
        group_batching,
        poll_interval: Duration::from_millis(50),
        breaker: Backoff { base: Duration::from_millis(2), cap: Duration::from_millis(10) },
        patience: Patience {
            backoff: Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(50) },
            ..Patience::default()
        },
        ..DispatcherConfig::default()
    }
}

async fn drain(store: &Store, publisher: impl Publisher, config: DispatcherConfig) -> Summary {
    Dispatcher::new(store.clone(), publisher, config).unwrap().drain(CancellationToken::new()).await.unwrap()
}

/// Runs until every message is done.
async fn run_until_done(store: &Store, publisher: impl Publisher, config: DispatcherConfig) -> Summary {
    let stop = CancellationToken::new();
    let running = tokio::spawn(Dispatcher::new(store.clone(), publisher, config).unwrap().run(stop.clone()));
    eventually("all done", || async { rows(store).await.iter().all(|(_, status, _)| status == "done") }).await;
    stop.cancel();
    running.await.unwrap().unwrap()
}

fn passing() -> Outcome {
    Outcome::Backoff { error: "internal error of this entry".into() }
}

fn illegal() -> Outcome {
    Outcome::Permanent { error: "illegal character".into() }
}

/// Status and attempts of every row, by id.
async fn states(store: &Store) -> Vec<(String, i32)> {
    rows(store).await.into_iter().map(|(_, status, attempts)| (status, attempts)).collect()
}

fn expected<const N: usize>(states: [(&str, i32); N]) -> Vec<(String, i32)> {
    states.map(|(status, attempts)| (status.to_owned(), attempts)).to_vec()
}

/// A publisher in memory of these limits. A message of type `elsewhere` has a destination of its own; a request that
/// holds one of type `held` waits until it is let go.
#[derive(Clone)]
struct Port {
    recording: RecordingPublisher,
    limits: Limits,
    /// How often a destination was asked for: once a lane, as long as no request can start.
    routed: Arc<AtomicUsize>,
    let_go: Arc<Semaphore>,
}

impl Port {
    fn of(limits: Limits) -> Self {
        let (recording, routed) = (RecordingPublisher::new(), Arc::default());
        Self { recording, limits, routed, let_go: Arc::new(Semaphore::new(0)) }
    }
}

impl Publisher for Port {
    fn destination(&self, message: &Message) -> Option<Destination> {
        self.routed.fetch_add(1, Ordering::Relaxed);
        Some(Destination::new(if message.event_type == "elsewhere" { "elsewhere" } else { "here" }))
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        self.limits
    }

    fn size(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn publish(&self, destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        let outcomes = self.recording.publish(destination, messages).await;
        if messages.iter().any(|message| message.event_type == "held") {
            self.let_go.acquire().await.unwrap().forget();
        }
        outcomes
    }
}

const TEN: Limits = Limits { entries: 10, bytes: 1 << 20 };

/// The requests for these messages where all of them wait while the only slot is taken by another aggregate.
async fn requests_for(messages: &[(&str, &str)], group_batching: u32) -> Vec<Vec<MessageId>> {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("first", "held")]).await;
    let publisher = Port::of(TEN);
    let config = DispatcherConfig { concurrency: 1, ..config(group_batching) };
    let stop = CancellationToken::new();
    let running = tokio::spawn(Dispatcher::new(store.clone(), publisher.clone(), config).unwrap().run(stop.clone()));
    eventually("the slot is taken", || async { publisher.recording.requests() == [[1]] }).await;
    seed(&store, messages).await;
    let lanes: HashSet<_> = messages.iter().map(|(aggregate, _)| aggregate).collect();
    eventually("every lane waits", || async { publisher.routed.load(Ordering::Relaxed) == 1 + lanes.len() }).await;
    publisher.let_go.add_permits(1);
    eventually("all done", || async { rows(&store).await.iter().all(|(_, status, _)| status == "done") }).await;
    stop.cancel();
    running.await.unwrap().unwrap();
    publisher.recording.requests().split_off(1)
}

/// P2
#[tokio::test]
async fn by_default_no_request_holds_two_messages_of_an_aggregate_however_hot_it_is() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded = seed(&store, &[("hot", "e"); 9]).await;
    let publisher = RecordingPublisher::new();
    let summary = drain(&store, publisher.clone(), DispatcherConfig::default()).await;
    assert_eq!(publisher.requests(), seeded.iter().map(|id| [*id]).collect::<Vec<_>>());
    assert_eq!(summary, Summary { claimed: 9, published: 9, ..Summary::default() });
    let messages = [("a", "e"), ("a", "e"), ("b", "e"), ("b", "e")];
    assert_eq!(requests_for(&messages, 1).await, [[2, 4], [3, 5]]);
}

#[tokio::test]
async fn requests_of_a_hot_aggregate_hold_as_many_consecutive_rows_as_allowed_in_order() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"); 8]).await;
    let publisher = RecordingPublisher::new();
    let summary = drain(&store, publisher.clone(), config(3)).await;
    assert_eq!(publisher.requests(), [vec![1, 2, 3], vec![4, 5, 6], vec![7, 8]]);
    assert_eq!(publisher.accepted_ids(), (1..=8).collect::<Vec<_>>());
    assert_eq!(summary, Summary { claimed: 8, published: 8, ..Summary::default() });
    assert!(rows(&store).await.iter().all(|(_, status, attempts)| status == "done" && *attempts == 1));
}

#[tokio::test]
async fn second_messages_of_every_lane_go_before_the_third_of_any() {
    let messages = [
        [("a", "e"); 4].as_slice(),
        &[("b", "e"); 4],
        &[("c", "e"), ("d", "e"), ("e", "e"), ("f", "e"), ("g", "e"), ("h", "e")],
    ];
    let expected = [vec![2, 3, 6, 7, 10, 11, 12, 13, 14, 15], vec![4, 5, 8, 9]];
    assert_eq!(requests_for(&messages.concat(), 3).await, expected);
}

#[tokio::test]
async fn heads_of_other_lanes_go_before_the_second_message_of_a_hot_one() {
    let others = ["b", "c", "d", "e", "f", "g", "h", "i", "j", "k"].map(|name| (name, "e"));
    let messages = [[("a", "e"); 3].as_slice(), &others].concat();
    let expected = [vec![2, 5, 6, 7, 8, 9, 10, 11, 12, 13], vec![14, 3, 4]];
    assert_eq!(requests_for(&messages, 10).await, expected);
}

#[tokio::test]
async fn a_request_keeps_to_the_byte_limit() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"); 7]).await;
    // a payload has 14 bytes
    let publisher = Port::of(Limits { entries: 10, bytes: 3 * 14 });
    drain(&store, publisher.clone(), config(10)).await;
    assert_eq!(publisher.recording.requests(), [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
}

#[tokio::test]
async fn a_request_never_mixes_destinations_although_an_aggregate_has_two() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &["e", "e", "elsewhere", "elsewhere", "e"].map(|event| ("hot", event))).await;
    let publisher = Port::of(TEN);
    drain(&store, publisher.clone(), config(10)).await;
    assert_eq!(publisher.recording.requests(), [vec![1, 2], vec![3, 4], vec![5]]);
}

/// The trade: the failed row was overtaken, and goes before anything new.
#[tokio::test]
async fn a_message_that_was_overtaken_is_counted_and_goes_before_anything_new_of_its_aggregate() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"); 5]).await;
    let publisher = RecordingPublisher::new();
    publisher.script(1, [passing(), passing()]);
    let summary = run_until_done(&store, publisher.clone(), config(3)).await;
    assert_eq!(publisher.requests(), [vec![1, 2, 3], vec![1], vec![1], vec![4, 5]]);
    assert_eq!(publisher.accepted_ids(), [2, 3, 1, 4, 5]);
    assert_eq!((summary.order_gaps, summary.backoff, summary.published), (1, 2, 5));
    let attempts: Vec<_> = rows(&store).await.into_iter().map(|(_, _, attempts)| attempts).collect();
    assert_eq!(attempts, [3, 1, 1, 1, 1], "what was handed back untried spent nothing");
}

#[tokio::test]
async fn every_message_that_was_overtaken_counts_and_no_other() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e"), ("a", "e"), ("a", "e"), ("a", "e"), ("b", "e"), ("b", "e")]).await;
    let publisher = RecordingPublisher::new();
    publisher.script(1, [Outcome::Unavailable { trouble: Trouble::Network, error: "throttled".into() }]);
    publisher.script(2, [passing()]);
    publisher.script(4, [passing()]);
    publisher.script(6, [passing()]);
    let summary = run_until_done(&store, publisher.clone(), config(10)).await;
    assert_eq!(summary.order_gaps, 2);
    let of_a: Vec<_> = publisher.accepted_ids().into_iter().filter(|id| *id <= 4).collect();
    assert_eq!(of_a, [3, 1, 2, 4]);
}

#[tokio::test]
async fn a_failure_of_the_last_ones_is_no_gap() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"); 4]).await;
    let publisher = RecordingPublisher::new();
    publisher.script(2, [passing()]);
    publisher.script(3, [passing()]);
    let summary = run_until_done(&store, publisher.clone(), config(3)).await;
    assert_eq!(publisher.requests(), [vec![1, 2, 3], vec![2], vec![3], vec![4]]);
    assert_eq!(publisher.accepted_ids(), [1, 2, 3, 4]);
    assert_eq!((summary.order_gaps, summary.backoff), (0, 2));
}

#[tokio::test]
async fn where_all_fail_there_is_no_gap_and_a_message_that_failed_goes_alone() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"); 4]).await;
    let publisher = RecordingPublisher::new();
    (1..=3).for_each(|id| publisher.script(id, [passing()]));
    let summary = run_until_done(&store, publisher.clone(), config(3)).await;
    assert_eq!(publisher.requests(), [vec![1, 2, 3], vec![1], vec![2], vec![3], vec![4]]);
    assert_eq!((summary.order_gaps, summary.backoff, summary.published), (0, 3, 4));
    assert_eq!(states(&store).await, expected([("done", 2), ("done", 2), ("done", 2), ("done", 1)]));
}

#[tokio::test]
async fn each_message_of_a_request_is_judged_by_its_own_outcome() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"); 6]).await;
    let publisher = RecordingPublisher::new();
    publisher.script(1, [illegal()]);
    publisher.script(2, [Outcome::TimedOut { error: "no reply in time".into() }]);
    publisher.script(3, [Outcome::Backoff { error: "internal error".into() }]);
    publisher.script(4, [Outcome::Unavailable { trouble: Trouble::Network, error: "throttled".into() }]);
    publisher.script(5, [Outcome::Unclassified { error: "a status nobody thought of".into() }]);
    let summary = drain(&store, publisher.clone(), config(5)).await;
    // the outage's are refunded although they stood behind a message that is dead
    let after = [("dead", 1), ("pending", 0), ("pending", 1), ("pending", 0), ("processing", 1), ("pending", 0)];
    assert_eq!(states(&store).await, expected(after));
    let counted = Summary {
        claimed: 6,
        dead: 1,
        backoff: 1,
        unavailable: 2,
        unclassified: 1,
        released: 1,
        outages: 1,
        ..Summary::default()
    };
    assert_eq!(summary, counted);
}

/// P3
#[tokio::test]
async fn a_message_refused_in_the_middle_of_a_request_gates_what_was_not_tried() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"), ("hot", "e"), ("hot", "e"), ("hot", "e"), ("other", "e")]).await;
    let publisher = RecordingPublisher::new();
    publisher.script(2, [illegal()]);
    let summary = drain(&store, publisher.clone(), config(3)).await;
    assert_eq!((summary.order_gaps, summary.dead, summary.published, summary.released), (1, 1, 3, 1));
    let gated = [("done", 1), ("dead", 1), ("done", 1), ("pending", 0), ("done", 1)];
    assert_eq!(states(&store).await, expected(gated));
    store.skip(2, "not needed any more").await.unwrap();
    drain(&store, publisher.clone(), config(3)).await;
    assert_eq!(publisher.accepted_ids().last(), Some(&4));
}

#[tokio::test]
async fn what_a_publisher_held_back_behind_a_failure_is_handed_back_and_goes_in_order() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"); 5]).await;
    let publisher = RecordingPublisher::new();
    publisher.script(2, [illegal()]);
    publisher.script(3, [Outcome::Untried]);
    publisher.script(4, [Outcome::Untried]);
    let summary = drain(&store, publisher.clone(), config(4)).await;
    assert_eq!(summary, Summary { claimed: 5, published: 1, dead: 1, released: 3, ..Summary::default() });
    let gated = [("done", 1), ("dead", 1), ("pending", 0), ("pending", 0), ("pending", 0)];
    assert_eq!(states(&store).await, expected(gated));
    store.skip(2, "not needed any more").await.unwrap();
    drain(&store, publisher.clone(), config(4)).await;
    assert_eq!(publisher.requests(), [vec![1, 2, 3, 4], vec![3, 4, 5]]);
}

#[tokio::test]
async fn any_failure_before_it_in_the_request_is_a_reason_to_hold_a_message_back() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "e"); 3]).await;
    let publisher = RecordingPublisher::new();
    publisher.script(1, [passing()]);
    publisher.script(3, [Outcome::Untried]);
    let summary = run_until_done(&store, publisher.clone(), config(3)).await;
    assert_eq!(publisher.requests(), [vec![1, 2, 3], vec![1], vec![3]]);
    assert_eq!((summary.unclassified, summary.released, summary.order_gaps), (0, 1, 1));
    assert_eq!(states(&store).await, expected([("done", 2), ("done", 1), ("done", 1)]));
}

/// Handed back, it would be claimed and come back again, without end.
#[tokio::test]
async fn what_a_publisher_held_back_for_no_reason_is_left_to_its_lease() {
    for group_batching in [1, 2] {
        let database = Database::new().await;
        let store = database.store().await;
        seed(&store, &[("a", "e"), ("a", "e"), ("b", "e")]).await;
        let publisher = RecordingPublisher::new();
        // the failure of another aggregate is no reason
        publisher.script(1, [illegal()]);
        publisher.script(3, [Outcome::Untried]);
        let summary = drain(&store, publisher, config(group_batching)).await;
        assert_eq!(summary.unclassified, 1);
        assert_eq!(rows(&store).await[2], (3, "processing".to_owned(), 1));
    }
}

/// A publisher that knows which aggregates it has in hand, over several dispatchers.
#[derive(Clone, Default)]
struct InHand {
    recording: RecordingPublisher,
    aggregates: Arc<Mutex<HashSet<String>>>,
}

impl Publisher for InHand {
    fn destination(&self, message: &Message) -> Option<Destination> {
        self.recording.destination(message)
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        Limits { entries: 4, bytes: 1 << 20 }
    }

    fn size(&self, message: &Message) -> usize {
        self.recording.size(message)
    }

    async fn publish(&self, destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        let of_request: HashSet<_> = messages.iter().map(|message| message.aggregate_id.clone()).collect();
        for aggregate in &of_request {
            assert!(self.aggregates.lock().unwrap().insert(aggregate.clone()), "two requests hold {aggregate}");
        }
        // lets the other stages and dispatchers go on meanwhile
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let outcomes = self.recording.publish(destination, messages).await;
        self.aggregates.lock().unwrap().retain(|aggregate| !of_request.contains(aggregate));
        outcomes
    }
}

/// P2
#[tokio::test]
async fn no_aggregate_ever_has_two_requests_in_flight() {
    let database = Database::new().await;
    let store = database.store().await;
    let names = ["a", "b", "c"];
    let messages: Vec<_> = (0..90).map(|n| (names[n % 3], "e")).collect();
    seed(&store, &messages).await;
    let publisher = InHand::default();
    let config = || DispatcherConfig { batch_size: 20, ..config(3) };
    let (one, two) =
        tokio::join!(drain(&store, publisher.clone(), config()), drain(&store, publisher.clone(), config()));
    // an assertion of the publisher that fails is an unclassified failure to its dispatcher
    assert_eq!((one.unclassified + two.unclassified, one.order_gaps + two.order_gaps), (0, 0));
    run_until_done(&store, publisher.clone(), config()).await;
    for first in 1..=3 {
        let of_aggregate: Vec<_> =
            publisher.recording.accepted_ids().into_iter().filter(|id| id % 3 == first % 3).collect();
        assert_eq!(of_aggregate, (first..=90).step_by(3).collect::<Vec<_>>());
    }
    assert!(publisher.recording.requests().iter().any(|request| request.len() == 3), "messages shared requests");
}

#[tokio::test]
async fn a_stop_finishes_the_request_in_flight_and_hands_back_the_rest_with_attempts_refunded() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("hot", "held"); 8]).await;
    let publisher = Port::of(TEN);
    let stop = CancellationToken::new();
    let running = tokio::spawn(Dispatcher::new(store.clone(), publisher.clone(), config(3)).unwrap().run(stop.clone()));
    eventually("the first three are out", || async { publisher.recording.requests() == [[1, 2, 3]] }).await;
    assert!(states(&store).await.iter().all(|state| *state == ("processing".to_owned(), 1)));
    stop.cancel();
    publisher.let_go.add_permits(8);
    let summary = running.await.unwrap().unwrap();
    assert_eq!(summary, Summary { claimed: 8, published: 3, released: 5, ..Summary::default() });
    assert_eq!(publisher.recording.requests(), [[1, 2, 3]]);
    let after = [[("done", 1); 3].as_slice(), &[("pending", 0); 5]].concat();
    assert_eq!(states(&store).await, expected::<8>(after.try_into().unwrap()));
}

/// Sends to SQS and records the requests.
#[derive(Clone)]
struct Watched {
    sqs: SqsPublisher,
    requests: Arc<Mutex<Vec<Vec<MessageId>>>>,
}

impl Publisher for Watched {
    fn destination(&self, message: &Message) -> Option<Destination> {
        self.sqs.destination(message)
    }

    fn limits(&self, destination: &Destination) -> Limits {
        self.sqs.limits(destination)
    }

    fn size(&self, message: &Message) -> usize {
        self.sqs.size(message)
    }

    async fn publish(&self, destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        self.requests.lock().unwrap().push(messages.iter().map(|message| message.id).collect());
        self.sqs.publish(destination, messages).await
    }
}

/// P2
#[tokio::test]
async fn a_queue_delivers_the_messages_of_a_shared_request_in_their_order() {
    let (database, queue) = (Database::new().await, Queue::fifo().await);
    let store = database.store().await;
    let seeded = seed(&store, &[("order-1", "e"); 35]).await;
    let config = DispatcherConfig { run_length: 20, ..config(10) };
    let sqs = SqsPublisher::connect(Routes::All(queue.url().into()), "test", config.publish_timeout).await.unwrap();
    let publisher = Watched { sqs, requests: Arc::default() };
    let summary = drain(&store, publisher.clone(), config).await;
    assert_eq!(summary, Summary { claimed: 35, published: 35, ..Summary::default() });
    let requests: Vec<_> = publisher.requests.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(requests, [10, 10, 10, 5]);
    let received = queue.receive_all().await;
    assert_eq!(received.iter().map(Received::outbox_id).collect::<Vec<_>>(), seeded);
    let sequences: Vec<_> = received.iter().map(|message| message.sequence.clone()).collect();
    assert!(sequences.is_sorted_by(|before, after| before < after), "{sequences:?}");
}
