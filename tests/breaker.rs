//! Outages, throttling and messages that hang, on real PostgreSQL, with queues that are switched off and on in memory. P7

mod support;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::{Patience, Trouble};
use ordered_outbox::publisher::{Destination, Limits};
use ordered_outbox::{
    Dispatcher, DispatcherConfig, DispatcherError, Message, MessageId, NewMessage, Outcome, Publisher, Store, Summary,
    enqueue_many,
};
use support::{Database, eventually, execute, rows};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Up,
    Down(Trouble),
    Hangs,
    /// Only messages of the event type `hang`, and whatever shares a request with one.
    HangsForSome,
    /// Takes every second request.
    ThrottlesEverySecond,
}

/// Two queues, named as the aggregate types that go there.
#[derive(Clone)]
struct Queues {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    states: HashMap<String, State>,
    accepted: Vec<(String, MessageId)>,
    requests: Vec<(String, Vec<MessageId>)>,
    in_flight: HashMap<String, usize>,
    most_in_flight: HashMap<String, usize>,
}

impl Queues {
    fn new() -> Self {
        Self { inner: Arc::default(), changed: Arc::default() }
    }

    fn set(&self, queue: &str, state: State) {
        self.inner.lock().unwrap().states.insert(queue.to_owned(), state);
        self.changed.notify_waiters();
    }

    /// Ids by aggregate, in the order of acceptance.
    fn accepted(&self) -> BTreeMap<String, Vec<MessageId>> {
        let mut by_aggregate = BTreeMap::<_, Vec<_>>::new();
        for (aggregate, id) in self.inner.lock().unwrap().accepted.clone() {
            by_aggregate.entry(aggregate).or_default().push(id);
        }
        by_aggregate
    }

    /// Every request to a queue so far.
    fn requests(&self, queue: &str) -> Vec<Vec<MessageId>> {
        let requests = self.inner.lock().unwrap().requests.clone();
        requests.into_iter().filter(|(to, _)| to == queue).map(|(_, ids)| ids).collect()
    }

    fn most_in_flight(&self, queue: &str) -> usize {
        std::mem::take(self.inner.lock().unwrap().most_in_flight.entry(queue.to_owned()).or_default())
    }

    fn arrives(&self, queue: &str, messages: &[Message]) -> (State, usize) {
        let mut inner = self.inner.lock().unwrap();
        inner.requests.push((queue.to_owned(), messages.iter().map(|message| message.id).collect()));
        let in_flight = inner.in_flight.entry(queue.to_owned()).or_default();
        *in_flight += 1;
        let in_flight = *in_flight;
        let most = inner.most_in_flight.entry(queue.to_owned()).or_default();
        *most = in_flight.max(*most);
        let nth = inner.requests.iter().filter(|(to, _)| to == queue).count();
        (inner.states.get(queue).copied().unwrap_or(State::Up), nth)
    }
}

/// Counts a request out, whether it was answered or given up.
struct InFlight(Queues, String);

impl Drop for InFlight {
    fn drop(&mut self) {
        *self.0.inner.lock().unwrap().in_flight.get_mut(&self.1).unwrap() -= 1;
    }
}

impl Publisher for Queues {
    fn destination(&self, message: &Message) -> Option<Destination> {
        Some(Destination::new(&message.aggregate_type))
    }

    fn aggregate_types(&self, destination: &Destination) -> Option<Vec<String>> {
        Some(vec![destination.as_str().to_owned()])
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        Limits { entries: 10, bytes: 1 << 20 }
    }

    fn size(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn publish(&self, destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        let queue = destination.as_str();
        let (state, nth) = self.arrives(queue, messages);
        let _in_flight = InFlight(self.clone(), queue.to_owned());
        tokio::task::yield_now().await;
        let unavailable = |trouble| vec![Outcome::Unavailable { trouble, error: "scripted".into() }; messages.len()];
        match state {
            State::Down(trouble) => return unavailable(trouble),
            State::Hangs => std::future::pending::<()>().await,
            State::HangsForSome if messages.iter().any(|message| message.event_type == "hang") => {
                std::future::pending::<()>().await;
            }
            State::ThrottlesEverySecond if nth % 2 == 0 => return unavailable(Trouble::Throttled),
            State::Up | State::HangsForSome | State::ThrottlesEverySecond => {}
        }
        let accepted = messages.iter().map(|message| (message.aggregate_id.clone(), message.id));
        self.inner.lock().unwrap().accepted.extend(accepted);
        vec![Outcome::published(); messages.len()]
    }
}

/// Short waits, so that what must come again comes soon; nothing is ordered by them.
fn config() -> DispatcherConfig {
    DispatcherConfig {
        poll_interval: Duration::from_millis(50),
        breaker: Backoff { base: Duration::from_millis(5), cap: Duration::from_millis(40) },
        patience: Patience {
            max_attempts: 3,
            backoff: Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(50) },
            ..Patience::default()
        },
        ..DispatcherConfig::default()
    }
}

type Running = (CancellationToken, JoinHandle<Result<Summary, DispatcherError>>);

fn start(store: &Store, publisher: &Queues, config: DispatcherConfig) -> Running {
    let stop = CancellationToken::new();
    let dispatcher = Dispatcher::new(store.clone(), publisher.clone(), config).unwrap();
    (stop.clone(), tokio::spawn(dispatcher.run(stop)))
}

async fn finish((stop, running): Running) -> Summary {
    stop.cancel();
    running.await.unwrap().unwrap()
}

/// `(aggregate type, aggregate id, event type)` of each message, in order.
async fn seed(store: &Store, messages: impl IntoIterator<Item = (&str, String, &str)>) {
    let messages: Vec<_> = messages
        .into_iter()
        .map(|(aggregate_type, aggregate_id, event)| NewMessage::from_json(aggregate_type, aggregate_id, event, "{}"))
        .collect();
    let mut tx = store.pool().begin().await.unwrap();
    enqueue_many(&mut tx, &messages).await.unwrap();
    tx.commit().await.unwrap();
}

/// `aggregates` of this type with `each` messages each, in turn.
async fn seed_many(store: &Store, aggregate_type: &'static str, aggregates: usize, each: usize) {
    let names = (0..each).flat_map(|_| (0..aggregates).map(|n| (aggregate_type, format!("{aggregate_type}-{n}"), "e")));
    seed(store, names).await;
}

async fn unfinished(store: &Store, aggregate_type: &str) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM outbox WHERE aggregate_type = $1 AND status <> 'done'")
        .bind(aggregate_type)
        .fetch_one(store.pool())
        .await
        .unwrap()
}

async fn all_done(store: &Store) -> bool {
    rows(store).await.iter().all(|(_, status, _)| status == "done")
}

/// P2: each aggregate's messages once, in order, and no attempt spent but the one that succeeded.
async fn assert_untouched_by_it(store: &Store, queues: &Queues) {
    for (aggregate, ids) in queues.accepted() {
        assert!(ids.is_sorted_by(|a, b| a < b), "{aggregate}: {ids:?}");
    }
    let states = rows(store).await;
    assert_eq!(queues.accepted().values().map(Vec::len).sum::<usize>(), states.len());
    assert!(states.iter().all(|(_, status, attempts)| status == "done" && *attempts == 1), "{states:?}");
}

// C20 C21 C22
#[tokio::test]
async fn while_one_queue_is_down_the_other_flows_and_nothing_of_the_first_is_spent_or_held() {
    for trouble in [Trouble::Network, Trouble::Kms, Trouble::Queue, Trouble::Credentials] {
        let database = Database::new().await;
        let store = database.store().await;
        let queues = Queues::new();
        queues.set("orders", State::Down(trouble));
        seed_many(&store, "orders", 200, 3).await;
        seed_many(&store, "payments", 200, 3).await;
        let running = start(&store, &queues, config());
        eventually("payments flow", || async { unfinished(&store, "payments").await == 0 }).await;
        let probes = queues.requests("orders").len();
        eventually("it is probed", || async { queues.requests("orders").len() >= probes + 5 }).await;
        let requests = queues.requests("orders");
        let probes = &requests[requests.len() - 4..];
        assert!(probes.iter().all(|ids| ids.len() == 1), "a probe is one message: {probes:?}");
        let (held, spent): (i64, i64) = sqlx::query_as(
            "SELECT count(*) FILTER (WHERE status = 'processing'), count(*) FILTER (WHERE attempts > 1) \
             FROM outbox WHERE aggregate_type = 'orders'",
        )
        .fetch_one(store.pool())
        .await
        .unwrap();
        assert!(held <= 10 && spent == 0, "{held} held, {spent} spent");
        queues.set("orders", State::Up);
        eventually("orders flow", || all_done(&store)).await;
        let summary = finish(running).await;
        assert_eq!((summary.dead, summary.backoff, summary.outages), (0, 0, 1), "{summary:?}");
        assert_untouched_by_it(&store, &queues).await;
    }
}

/// P8: what is waited for costs a look, no claim.
#[tokio::test]
async fn while_a_queue_is_down_its_rows_are_claimed_for_probes_only() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::Down(Trouble::Network));
    seed_many(&store, "orders", 500, 1).await;
    let running = start(&store, &queues, config());
    eventually("it is down", || async { !queues.requests("orders").is_empty() }).await;
    let requests = queues.requests("orders").len();
    eventually("it was probed", || async { queues.requests("orders").len() >= requests + 20 }).await;
    let summary = finish(running).await;
    let probes = queues.requests("orders").iter().filter(|ids| ids.len() == 1).count() as u64;
    // what is claimed before the first failure is told: three batches at the most
    assert!(summary.claimed <= 300 + 10 * (probes + 2), "{summary:?} with {probes} probes");
    assert!(rows(&store).await.iter().all(|(_, status, attempts)| status == "pending" && *attempts == 0));
}

// C12
#[tokio::test]
async fn a_message_that_hangs_spends_its_own_attempts_and_dies_while_the_others_spend_none() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::HangsForSome);
    seed(&store, (0..40).map(|n| ("orders", format!("order-{n}"), if n == 3 { "hang" } else { "e" }))).await;
    let config = DispatcherConfig { publish_timeout: Duration::from_millis(150), ..config() };
    let running = start(&store, &queues, config);
    let mut sent = 40;
    // traffic, without which nobody could tell whose fault it is
    while rows(&store).await.iter().all(|(_, status, _)| status != "dead") {
        seed(&store, [("orders", format!("order-{sent}"), "e")]).await;
        sent += 1;
        assert!(sent < 5_000, "it does not die");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    eventually("the others are done", || async { unfinished(&store, "orders").await == 1 }).await;
    let summary = finish(running).await;
    assert_eq!(summary.dead, 1, "{summary:?}");
    let of = |id| queues.requests("orders").into_iter().filter(move |ids| ids.contains(&id));
    let alone = of(4).filter(|ids| ids.len() == 1).count();
    assert!(alone >= 3, "it goes by itself: {:?}", of(4).collect::<Vec<_>>());
    for (id, status, attempts) in rows(&store).await {
        assert_eq!((status.as_str(), attempts), if id == 4 { ("dead", 3) } else { ("done", 1) }, "{id}");
    }
}

/// P7
#[tokio::test]
async fn where_everything_hangs_nothing_is_spent_and_all_goes_when_it_ends() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::Hangs);
    seed_many(&store, "orders", 50, 2).await;
    let config = DispatcherConfig { publish_timeout: Duration::from_millis(50), ..config() };
    let running = start(&store, &queues, config);
    eventually("it was probed", || async { queues.requests("orders").len() >= 20 }).await;
    queues.set("orders", State::Up);
    eventually("all done", || all_done(&store)).await;
    let summary = finish(running).await;
    assert_eq!((summary.dead, summary.backoff), (0, 0), "{summary:?}");
    assert_untouched_by_it(&store, &queues).await;
}

/// A single one cannot keep the breaker open.
#[tokio::test]
async fn a_message_that_hangs_among_the_oldest_does_not_keep_its_queue_down() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::Hangs);
    seed(&store, (0..30).map(|n| ("orders", format!("order-{n}"), if n == 0 { "hang" } else { "e" }))).await;
    let config = DispatcherConfig { publish_timeout: Duration::from_millis(50), ..config() };
    let running = start(&store, &queues, config);
    eventually("it is down", || async { queues.requests("orders").len() >= 6 }).await;
    queues.set("orders", State::HangsForSome);
    eventually("the others are done", || async { unfinished(&store, "orders").await <= 1 }).await;
    finish(running).await;
}

// C20
#[tokio::test]
async fn throttled_messages_stay_claimed_and_go_again_in_order_at_a_slower_pace() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::ThrottlesEverySecond);
    seed_many(&store, "orders", 40, 5).await;
    let running = start(&store, &queues, config());
    eventually("all done", || all_done(&store)).await;
    let summary = finish(running).await;
    assert_eq!((summary.dead, summary.unavailable, summary.outages, summary.claimed), (0, 0, 0, 200), "{summary:?}");
    assert_untouched_by_it(&store, &queues).await;
}

// C20
#[tokio::test]
async fn where_every_request_is_throttled_they_come_one_at_a_time_and_far_apart_and_widen_when_it_ends() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::Down(Trouble::Throttled));
    seed_many(&store, "orders", 400, 2).await;
    let running = start(&store, &queues, config());
    eventually("one request at a time", || async {
        queues.most_in_flight("orders");
        let requests = queues.requests("orders").len();
        eventually("it goes on", || async { queues.requests("orders").len() >= requests + 2 }).await;
        queues.most_in_flight("orders") == 1
    })
    .await;
    queues.set("orders", State::Up);
    eventually("all done", || all_done(&store)).await;
    let summary = finish(running).await;
    assert_eq!((summary.dead, summary.outages), (0, 0), "{summary:?}");
    assert_untouched_by_it(&store, &queues).await;
}

#[tokio::test]
async fn a_drain_waits_for_a_queue_that_is_down_and_ends_when_it_has_sent_everything() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::Down(Trouble::Access));
    seed_many(&store, "orders", 30, 2).await;
    seed_many(&store, "payments", 30, 2).await;
    let dispatcher = Dispatcher::new(store.clone(), queues.clone(), config()).unwrap();
    let drain = tokio::spawn(dispatcher.drain(CancellationToken::new()));
    eventually("payments flow", || async { unfinished(&store, "payments").await == 0 }).await;
    let requests = queues.requests("orders").len();
    eventually("it is probed", || async { queues.requests("orders").len() >= requests + 5 }).await;
    assert!(!drain.is_finished());
    queues.set("orders", State::Up);
    let summary = drain.await.unwrap().unwrap();
    assert_eq!((summary.dead, summary.outages), (0, 1), "{summary:?}");
    assert_untouched_by_it(&store, &queues).await;
}

// C35
#[tokio::test]
async fn a_stop_during_an_outage_ends_at_once_and_hands_everything_back() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::Down(Trouble::Network));
    seed_many(&store, "orders", 30, 2).await;
    // longer than anybody waits
    let pause = Backoff { base: Duration::from_hours(1), cap: Duration::from_hours(1) };
    let running = start(&store, &queues, DispatcherConfig { breaker: pause, ..config() });
    eventually("it is down", || async { !queues.requests("orders").is_empty() }).await;
    let stopped = tokio::time::timeout(Duration::from_secs(20), finish(running)).await.unwrap();
    assert_eq!((stopped.dead, stopped.published), (0, 0));
    assert!(rows(&store).await.iter().all(|(_, status, attempts)| status == "pending" && *attempts == 0));
}

/// A dispatcher that was restarted in the middle is none the wiser, and does no harm.
#[tokio::test]
async fn a_restart_during_an_outage_finds_out_anew_and_spends_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    queues.set("orders", State::Down(Trouble::Internal));
    seed_many(&store, "orders", 300, 1).await;
    for _ in 0..5 {
        let requests = queues.requests("orders").len();
        let running = start(&store, &queues, config());
        eventually("it was tried", || async { queues.requests("orders").len() > requests + 1 }).await;
        let summary = finish(running).await;
        assert_eq!(summary.outages, 1, "{summary:?}");
    }
    queues.set("orders", State::Up);
    let running = start(&store, &queues, config());
    eventually("all done", || all_done(&store)).await;
    finish(running).await;
    assert_untouched_by_it(&store, &queues).await;
}

#[tokio::test]
async fn several_dispatchers_each_find_out_and_together_lose_no_order() {
    let database = Database::new().await;
    let store = database.store().await;
    let queues = Queues::new();
    seed_many(&store, "orders", 20, 20).await;
    let running: Vec<_> = (0..3).map(|_| start(&store, &queues, config())).collect();
    for _ in 0..5 {
        queues.set("orders", State::Down(Trouble::Network));
        let requests = queues.requests("orders").len();
        eventually("it was tried", || async {
            queues.requests("orders").len() > requests + 3 || all_done(&store).await
        })
        .await;
        queues.set("orders", State::Up);
        let accepted = queues.accepted().values().map(Vec::len).sum::<usize>();
        let more = || async { queues.accepted().values().map(Vec::len).sum::<usize>() > accepted };
        eventually("it flows", || async { more().await || all_done(&store).await }).await;
    }
    eventually("all done", || all_done(&store)).await;
    for running in running {
        assert_eq!(finish(running).await.dead, 0);
    }
    assert_untouched_by_it(&store, &queues).await;
    assert_eq!(execute(&store, "SELECT FROM outbox WHERE last_error IS NOT NULL").await, 0);
}

/// Every counter that is not zero, by its name and labels, and every gauge.
fn recorded(snapshotter: &Snapshotter) -> BTreeMap<String, u64> {
    let all = snapshotter.snapshot().into_vec().into_iter().filter_map(|(key, _, _, value)| {
        let labels: Vec<_> = key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.key().name(), labels.join(","));
        match value {
            DebugValue::Counter(0) | DebugValue::Histogram(_) => None,
            DebugValue::Counter(count) => Some((name, count)),
            DebugValue::Gauge(value) => Some((name, value.into_inner() as u64)),
        }
    });
    all.collect()
}

// C21
#[tokio::test]
async fn the_metrics_name_the_queue_its_trouble_and_the_state_of_its_breaker() {
    let database = Database::new().await;
    let store = database.store().await;
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let queues = Queues::new();
    queues.set("orders", State::Down(Trouble::Kms));
    seed_many(&store, "orders", 1, 1).await;
    let pause = Backoff { base: Duration::from_hours(1), cap: Duration::from_hours(1) };
    let running = start(&store, &queues, DispatcherConfig { breaker: pause, ..config() });
    eventually("it is down", || async { !queues.requests("orders").is_empty() }).await;
    finish(running).await;
    let down = recorded(&snapshotter);
    assert_eq!(down["outbox_breaker_openings_total{queue=orders,trouble=kms}"], 1);
    assert_eq!(down["outbox_destination_trouble_total{queue=orders,trouble=kms}"], 1);
    assert_eq!(down["outbox_breaker_state{queue=orders}"], 2);
    assert_eq!(down["outbox_publish_concurrency{queue=orders}"], 0);
    assert_eq!(down["outbox_outcomes_total{class=unavailable}"], 1);

    queues.set("orders", State::Up);
    let running = start(&store, &queues, config());
    eventually("all done", || all_done(&store)).await;
    finish(running).await;
    let up = recorded(&snapshotter);
    assert_eq!((up["outbox_breaker_state{queue=orders}"], up["outbox_publish_concurrency{queue=orders}"]), (0, 16));
}

/// P9
#[tokio::test]
async fn a_send_later_than_five_minutes_after_the_first_try_is_counted_and_an_earlier_one_is_not() {
    for (first_tried, counted) in [("4 minutes 50 seconds", None), ("5 minutes 1 second", Some(&3))] {
        let database = Database::new().await;
        let store = database.store().await;
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let queues = Queues::new();
        seed_many(&store, "orders", 5, 1).await;
        sqlx::query("UPDATE outbox SET first_tried_at = now() - $1::text::interval WHERE id <= 3")
            .bind(first_tried)
            .execute(store.pool())
            .await
            .unwrap();
        let running = start(&store, &queues, config());
        eventually("all done", || all_done(&store)).await;
        finish(running).await;
        assert_eq!(recorded(&snapshotter).get("outbox_dedup_window_exceeded_total{}"), counted, "{first_tried}");
    }
}
