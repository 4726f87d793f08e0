//! The pipeline on real PostgreSQL, with publishers that fail in ways a real broker cannot be told to.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::{Patience, Trouble};
use ordered_outbox::publisher::{Destination, Limits, RecordingPublisher};
use ordered_outbox::{
    Dispatcher, DispatcherConfig, DispatcherError, Message, MessageId, Outcome, Publisher, Store, Summary,
};
use support::{Database, eventually, execute, rows, seed};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Short waits, so that what must come again comes soon; nothing is ordered by them.
fn config() -> DispatcherConfig {
    DispatcherConfig {
        poll_interval: Duration::from_millis(50),
        breaker: Backoff { base: Duration::from_millis(2), cap: Duration::from_millis(10) },
        patience: Patience {
            backoff: Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(50) },
            ..Patience::default()
        },
        ..DispatcherConfig::default()
    }
}

type Running = JoinHandle<Result<Summary, DispatcherError>>;

fn start(store: &Store, publisher: impl Publisher, config: DispatcherConfig) -> (CancellationToken, Running) {
    let stop = CancellationToken::new();
    let dispatcher = Dispatcher::new(store.clone(), publisher, config).unwrap();
    (stop.clone(), tokio::spawn(dispatcher.run(stop)))
}

async fn drain(store: &Store, publisher: impl Publisher, config: DispatcherConfig) -> Summary {
    Dispatcher::new(store.clone(), publisher, config).unwrap().drain(CancellationToken::new()).await.unwrap()
}

async fn all_done(store: &Store) -> bool {
    rows(store).await.iter().all(|(_, status, _)| status == "done")
}

async fn finish((stop, running): (CancellationToken, Running)) -> Summary {
    stop.cancel();
    running.await.unwrap().unwrap()
}

fn down() -> Outcome {
    Outcome::Unavailable { trouble: Trouble::Network, error: "connection refused".into() }
}

fn passing() -> Outcome {
    Outcome::Backoff { error: "internal error of this entry".into() }
}

/// A publisher that holds back the messages of some event types until they are let go, and records the rest.
#[derive(Clone)]
struct Holding {
    recording: RecordingPublisher,
    held: &'static str,
    let_go: Arc<Semaphore>,
    arrived: Arc<Semaphore>,
}

impl Holding {
    fn new(held: &'static str) -> Self {
        Self {
            recording: RecordingPublisher::new(),
            held,
            let_go: Arc::new(Semaphore::new(0)),
            arrived: Arc::new(Semaphore::new(0)),
        }
    }

    /// Waits until `count` held messages have arrived.
    async fn arrivals(&self, count: u32) {
        self.arrived.acquire_many(count).await.unwrap().forget();
    }
}

impl Publisher for Holding {
    /// Held messages have a destination of their own: a request holds only its own messages back.
    fn destination(&self, message: &Message) -> Option<Destination> {
        Some(Destination::new(if message.event_type == self.held { "held" } else { "flowing" }))
    }

    fn limits(&self, destination: &Destination) -> Limits {
        let entries = if destination.as_str() == "held" { 1 } else { 10 };
        Limits { entries, bytes: 1 << 20 }
    }

    fn size(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn publish(&self, destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        if destination.as_str() == "held" {
            self.arrived.add_permits(messages.len());
            self.let_go.acquire().await.unwrap().forget();
        }
        self.recording.publish(destination, messages).await
    }
}

/// A publisher whose every call does the same strange thing.
struct Strange(Act);

type Act = fn(&[Message]) -> Vec<Outcome>;

impl Publisher for Strange {
    fn destination(&self, message: &Message) -> Option<Destination> {
        (message.event_type != "unrouted").then(|| Destination::new("strange"))
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        Limits { entries: 10, bytes: 1 << 20 }
    }

    fn size(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn publish(&self, _destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        (self.0)(messages)
    }
}

#[tokio::test]
async fn every_aggregate_is_published_in_its_order_and_no_request_holds_two_messages_of_one() {
    let database = Database::new().await;
    let store = database.store().await;
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let messages: Vec<_> = (0..70).map(|n| (names[n % 7], "e")).collect();
    let seeded = seed(&store, &messages).await;
    let publisher = RecordingPublisher::new();
    let summary = drain(&store, publisher.clone(), DispatcherConfig { run_length: 4, ..config() }).await;
    assert_eq!(summary, Summary { claimed: 70, published: 70, ..Summary::default() });
    let mut by_aggregate: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
    for message in publisher.accepted() {
        by_aggregate.entry(message.aggregate_id).or_default().push(message.id);
    }
    for (at, name) in names.iter().enumerate() {
        let expected: Vec<_> = seeded.iter().copied().skip(at).step_by(7).collect();
        assert_eq!(by_aggregate[*name], expected, "{name}");
    }
    let aggregate = |id: MessageId| (id - seeded[0]) % 7;
    for request in publisher.requests() {
        let mut aggregates: Vec<_> = request.iter().map(|id| aggregate(*id)).collect();
        aggregates.sort_unstable();
        aggregates.dedup();
        assert_eq!(aggregates.len(), request.len(), "{request:?}");
    }
}

#[tokio::test]
async fn lanes_share_requests_so_that_a_full_load_goes_out_ten_at_a_time() {
    let database = Database::new().await;
    let store = database.store().await;
    let names: Vec<_> = (0..100).map(|n| format!("order-{n}")).collect();
    seed(&store, &names.iter().map(|name| (name.as_str(), "e")).collect::<Vec<_>>()).await;
    let publisher = Holding::new("none");
    let mut config = config();
    config.concurrency = 1;
    drain(&store, publisher.clone(), config).await;
    let requests = publisher.recording.requests();
    // the first may leave with whatever was ready first; after that the slot is taken and requests fill up
    assert!(requests.len() <= 12, "{} requests for 100 messages", requests.len());
    assert!(requests.iter().all(|request| request.len() <= 10));
}

// C08
#[tokio::test]
async fn a_message_that_fails_twice_still_goes_before_those_behind_it() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, b1, a2, a3] = seed(&store, &[("a", "e"), ("b", "e"), ("a", "e"), ("a", "e")]).await[..] else { panic!() };
    let publisher = RecordingPublisher::new();
    publisher.script(a1, [passing(), passing()]);
    let running = start(&store, publisher.clone(), config());
    eventually("all done", || all_done(&store)).await;
    let summary = finish(running).await;
    let accepted = publisher.accepted_ids();
    assert_eq!(accepted.iter().copied().filter(|id| *id != b1).collect::<Vec<_>>(), [a1, a2, a3]);
    assert_eq!(accepted[0], b1, "the other aggregate never notices");
    assert_eq!((summary.backoff, summary.published), (2, 4));
    assert_eq!(rows(&store).await[0], (a1, "done".to_owned(), 3));
    for attempts in rows(&store).await[1..].iter().map(|(_, _, attempts)| *attempts) {
        assert_eq!(attempts, 1, "what was handed back untried spent nothing");
    }
}

// C10
#[tokio::test]
async fn a_message_refused_in_a_shared_request_gates_its_aggregate_and_its_neighbours_are_done() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, _b1, _c1, a2] = seed(&store, &[("a", "e"), ("b", "e"), ("c", "e"), ("a", "e")]).await[..] else {
        panic!()
    };
    let publisher = RecordingPublisher::new();
    publisher.script(a1, [Outcome::Permanent { error: "illegal character".into() }]);
    let summary = drain(&store, publisher.clone(), config()).await;
    assert_eq!((summary.published, summary.dead), (2, 1));
    let expected = [(1, "dead", 1), (2, "done", 1), (3, "done", 1), (4, "pending", 0)];
    assert_eq!(rows(&store).await, expected.map(|(id, status, attempts)| (id, status.to_owned(), attempts)));
    // C09
    store.skip(a1, "not needed any more").await.unwrap();
    drain(&store, publisher.clone(), config()).await;
    assert_eq!(publisher.accepted_ids().last(), Some(&a2));
}

/// P7
#[tokio::test]
async fn an_outage_spends_no_attempts_and_order_holds_after_it() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded = seed(&store, &[("a", "e"), ("a", "e"), ("a", "e")]).await;
    let publisher = RecordingPublisher::new();
    publisher.script(seeded[0], std::iter::repeat_with(down).take(10));
    let mut config = config();
    config.patience.max_attempts = 2;
    let running = start(&store, publisher.clone(), config);
    eventually("all done", || all_done(&store)).await;
    let summary = finish(running).await;
    assert_eq!((summary.unavailable, summary.dead, summary.backoff), (10, 0, 0));
    assert_eq!(publisher.accepted_ids(), seeded);
    assert!(rows(&store).await.iter().all(|(_, _, attempts)| *attempts == 1), "only the successful try counts");
}

// C25 (P5)
#[tokio::test]
async fn while_the_broker_hangs_nothing_is_held_in_the_database_and_other_aggregates_flow() {
    let database = Database::new().await;
    let store = database.store().await;
    let [hung, _b1, _b2] = seed(&store, &[("a", "hang"), ("b", "e"), ("b", "e")]).await[..] else { panic!() };
    let publisher = Holding::new("hang");
    let running = start(&store, publisher.clone(), config());
    publisher.arrivals(1).await;
    eventually("b flows", || async { publisher.recording.accepted_ids() == [2, 3] }).await;
    let open: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    )
    .fetch_one(store.pool())
    .await
    .unwrap();
    assert_eq!(open, 0, "no open transaction");
    assert_eq!(execute(&store, "UPDATE outbox SET headers = '{}' WHERE id = 1").await, 1, "no row lock");
    publisher.let_go.add_permits(1);
    eventually("all done", || all_done(&store)).await;
    finish(running).await;
    assert_eq!(publisher.recording.accepted_ids().last(), Some(&hung));
}

/// P7: when everything times out it is an outage.
#[tokio::test]
async fn a_timeout_while_nothing_else_succeeds_spends_no_attempt() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "hang")]).await;
    let publisher = Holding::new("hang");
    let mut config = config();
    config.publish_timeout = Duration::from_millis(50);
    config.patience.max_attempts = 1;
    let running = start(&store, publisher.clone(), config);
    publisher.arrivals(3).await;
    let summary = finish(running).await;
    assert!(summary.unavailable >= 2, "{summary:?}");
    assert_eq!(rows(&store).await, [(1, "pending".to_owned(), 0)]);
    let error = store.show(1).await.unwrap().unwrap().last_error.unwrap();
    assert_eq!(error, "destination unavailable: no answer within the publish timeout of 50ms");
}

/// A publisher with one destination in which one message hangs while the others are accepted.
struct OneHangs(RecordingPublisher);

impl Publisher for OneHangs {
    fn destination(&self, _message: &Message) -> Option<Destination> {
        Some(Destination::new("one"))
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        Limits { entries: 1, bytes: 1 << 20 }
    }

    fn size(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn publish(&self, destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        if messages.iter().any(|message| message.event_type == "hang") {
            std::future::pending::<()>().await;
        }
        self.0.publish(destination, messages).await
    }
}

#[tokio::test]
async fn a_message_that_alone_times_out_while_others_succeed_spends_its_attempts_and_dies() {
    let database = Database::new().await;
    let store = database.store().await;
    let names: Vec<_> = (0..400).map(|n| format!("order-{n}")).collect();
    let publisher = RecordingPublisher::new();
    seed(&store, &[("a", "hang")]).await;
    let mut config = config();
    config.publish_timeout = Duration::from_millis(300);
    config.patience.max_attempts = 2;
    let running = start(&store, OneHangs(publisher.clone()), config);
    for name in &names {
        if rows(&store).await[0].1 == "dead" {
            break;
        }
        // a steady trickle of neighbours that succeed
        let id = seed(&store, &[(name.as_str(), "e")]).await[0];
        eventually("the neighbour is accepted", || async { publisher.accepted_ids().contains(&id) }).await;
    }
    finish(running).await;
    assert_eq!(rows(&store).await[0], (1, "dead".to_owned(), 2));
}

#[tokio::test]
async fn a_panic_a_reply_of_the_wrong_length_and_an_unclassified_failure_leave_the_row_to_its_lease_and_others_go_on() {
    let strange: [Act; 4] = [
        |_| panic!("a publisher's own bug"),
        |_| vec![],
        |messages| vec![Outcome::published(); messages.len() + 1],
        |messages| vec![Outcome::Unclassified { error: "a status nobody thought of".into() }; messages.len()],
    ];
    for act in strange {
        let database = Database::new().await;
        let store = database.store().await;
        seed(&store, &[("a", "e"), ("a", "e"), ("b", "e")]).await;
        let summary = drain(&store, Strange(act), config()).await;
        assert_eq!((summary.claimed, summary.unclassified, summary.released), (3, 2, 1));
        let expected = [(1, "processing", 1), (2, "pending", 0), (3, "processing", 1)];
        assert_eq!(rows(&store).await, expected.map(|(id, status, attempts)| (id, status.to_owned(), attempts)));
    }
}

#[tokio::test]
async fn a_message_without_a_route_waits_without_spending_attempts_and_says_why() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "unrouted"), ("b", "e")]).await;
    let summary =
        drain(&store, Strange(|messages| vec![Outcome::published(); messages.len()]), DispatcherConfig::default())
            .await;
    assert_eq!((summary.published, summary.unavailable), (1, 1));
    assert_eq!(rows(&store).await[0], (1, "pending".to_owned(), 0));
    let error = store.show(1).await.unwrap().unwrap().last_error.unwrap();
    assert_eq!(error, "destination unavailable: no route for aggregate type `order`: add one and start again");
}

// C35
#[tokio::test]
async fn a_stop_finishes_what_is_in_flight_and_hands_back_the_rest_with_attempts_refunded() {
    let database = Database::new().await;
    let store = database.store().await;
    // ten lanes of three: the heads are in flight, the twenty behind them are claimed and wait
    let names: Vec<_> = (0..10).map(|n| format!("order-{n}")).collect();
    let messages: Vec<_> = names.iter().flat_map(|name| [(name.as_str(), "held"); 3]).collect();
    let seeded = seed(&store, &messages).await;
    let publisher = Holding::new("held");
    let (stop, running) = start(&store, publisher.clone(), config());
    publisher.arrivals(10).await;
    assert!(rows(&store).await.iter().all(|(_, status, attempts)| status == "processing" && *attempts == 1));
    stop.cancel();
    publisher.let_go.add_permits(30);
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.claimed, summary.published, summary.released), (30, 10, 20));
    let expected: Vec<_> = seeded
        .iter()
        .enumerate()
        .map(|(at, id)| if at % 3 == 0 { (*id, "done".to_owned(), 1) } else { (*id, "pending".to_owned(), 0) })
        .collect();
    assert_eq!(rows(&store).await, expected);
}

// C37
#[tokio::test]
async fn a_stop_that_cannot_finish_ends_within_the_grace_period_with_an_error_and_loses_nothing() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "held")]).await;
    let publisher = Holding::new("held");
    let config = DispatcherConfig { shutdown_grace: Duration::from_millis(200), ..config() };
    let (stop, running) = start(&store, publisher.clone(), config);
    publisher.arrivals(1).await;
    stop.cancel();
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, DispatcherError::GraceExceeded(_)), "{error}");
    assert_eq!(rows(&store).await, [(1, "processing".to_owned(), 1)]);
}

/// P6: what could outlive its lease is not started.
#[tokio::test]
async fn a_lane_that_waited_too_long_for_a_slot_is_handed_back_untried() {
    let database = Database::new().await;
    let store = database.store().await;
    let [first, second] = seed(&store, &[("a", "held"), ("b", "held")]).await[..] else { panic!() };
    let publisher = Holding::new("held");
    let config = DispatcherConfig {
        concurrency: 1,
        lease: Duration::from_secs(2),
        publish_timeout: Duration::from_secs(1),
        ..config()
    };
    // claimed together with the first, the second waits for the only slot until its lease is nearly over
    let (stop, running) = start(&store, publisher.clone(), config);
    publisher.arrivals(1).await;
    eventually("the second is handed back", || async {
        let row = store.show(second).await.unwrap().unwrap();
        row.lease_version > 0 && row.attempts == 0
    })
    .await;
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_ne!(publisher.recording.requests().concat(), [first, second]);
}

// C39, C30: the row must say "done" before its successor can go, however often the write fails.
#[tokio::test]
async fn a_finalize_that_fails_is_repeated_until_the_database_takes_it() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "held"), ("a", "e")]).await;
    let publisher = Holding::new("held");
    let config = DispatcherConfig { run_length: 1, ..config() };
    let running = start(&store, publisher.clone(), config);
    publisher.arrivals(1).await;
    // the primary turns read-only: every write fails
    let name: String = sqlx::query_scalar("SELECT current_database()").fetch_one(store.pool()).await.unwrap();
    let read_only = |on: bool| {
        let sql = format!("ALTER DATABASE {name} SET default_transaction_read_only = {on}");
        let reconnect = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                         WHERE datname = current_database() AND pid <> pg_backend_pid()";
        let url = database.url().to_owned();
        async move {
            use sqlx::Connection as _;
            let mut admin = sqlx::PgConnection::connect(&url).await.unwrap();
            sqlx::raw_sql("SET default_transaction_read_only = off").execute(&mut admin).await.unwrap();
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
            sqlx::raw_sql(reconnect).execute(&mut admin).await.unwrap();
        }
    };
    read_only(true).await;
    publisher.let_go.add_permits(1);
    eventually("the first is accepted", || async { publisher.recording.accepted_ids() == [1] }).await;
    let observer = database.store().await;
    assert_eq!(rows(&observer).await[0].1, "processing", "it could not be finalized");
    assert_eq!(publisher.recording.accepted_ids(), [1], "the second waits for the first to be finalized");
    read_only(false).await;
    // the connections of `store` were cut
    let observer = database.store().await;
    eventually("all done", || all_done(&observer)).await;
    let summary = finish(running).await;
    assert_eq!(publisher.recording.accepted_ids(), [1, 2], "nothing was sent twice");
    assert_eq!((summary.published, summary.lease_lost), (2, 0));
    assert!(rows(&observer).await.iter().all(|(_, _, attempts)| *attempts == 1));
}

/// A constraint or a trigger that somebody added costs the rows it refuses, and no other.
#[tokio::test]
async fn a_row_that_refuses_its_verdict_is_left_to_its_lease_and_its_neighbours_are_done() {
    let refusals = [
        "ALTER TABLE outbox ADD CONSTRAINT odd CHECK (id <> 2 OR status <> 'done')",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN IF NEW.id = 2 AND NEW.status = 'done' THEN RAISE 'not this one'; END IF; RETURN NEW; END $$; \
         CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
    ];
    for refusal in refusals {
        let database = Database::new().await;
        let store = database.store().await;
        seed(&store, &[("a", "e"), ("b", "e"), ("c", "e")]).await;
        sqlx::raw_sql(refusal).execute(store.pool()).await.unwrap();
        let summary = drain(&store, RecordingPublisher::new(), config()).await;
        assert_eq!((summary.claimed, summary.published, summary.lease_lost), (3, 3, 0));
        let expected = [(1, "done", 1), (2, "processing", 1), (3, "done", 1)];
        assert_eq!(rows(&store).await, expected.map(|(id, status, attempts)| (id, status.to_owned(), attempts)));
    }
}

#[tokio::test]
async fn a_row_that_refuses_to_be_handed_back_is_left_to_its_lease() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, _a2] = seed(&store, &[("a", "e"), ("a", "e")]).await[..] else { panic!() };
    execute(
        &store,
        "ALTER TABLE outbox ADD CONSTRAINT odd CHECK (id <> 2 OR lease_version = 0 OR status <> 'pending')",
    )
    .await;
    let publisher = RecordingPublisher::new();
    publisher.script(a1, [Outcome::Permanent { error: "illegal character".into() }]);
    drain(&store, publisher, config()).await;
    let expected = [(1, "dead", 1), (2, "processing", 1)];
    assert_eq!(rows(&store).await, expected.map(|(id, status, attempts)| (id, status.to_owned(), attempts)));
}

#[tokio::test]
async fn claims_that_fail_cost_no_share_of_what_a_dispatcher_may_hold() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded = seed(&store, &[("a", "e"), ("b", "e"), ("c", "e")]).await;
    // a sequence counts on where its transaction is rolled back
    sqlx::raw_sql(
        "CREATE SEQUENCE tries; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM nextval('tries'); RAISE 'not now'; END $$; \
         CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let publisher = RecordingPublisher::new();
    let running = start(&store, publisher.clone(), DispatcherConfig { batch_size: 1, ..config() });
    eventually("more claims have failed than it may hold rows", || async {
        let tries: i64 = sqlx::query_scalar("SELECT last_value FROM tries").fetch_one(store.pool()).await.unwrap();
        tries > 3
    })
    .await;
    execute(&store, "DROP TRIGGER refuse ON outbox").await;
    eventually("all done", || all_done(&store)).await;
    finish(running).await;
    assert_eq!(publisher.accepted_ids(), seeded);
}

// C28, seen from the row: an error text cannot keep its row from being finalized.
#[tokio::test]
async fn an_error_text_of_two_megabytes_with_nul_bytes_is_stored_and_the_state_changes() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("a", "e")]).await[0];
    let publisher = RecordingPublisher::new();
    publisher.script(id, [Outcome::Permanent { error: "\0é".repeat(700_000) }]);
    drain(&store, publisher, config()).await;
    let row = store.show(id).await.unwrap().unwrap();
    assert_eq!((row.status.as_str(), row.last_error), ("dead", Some("é".repeat(500))));
}

// C40
#[tokio::test]
async fn several_dispatchers_share_one_backoff_of_a_failing_head() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("a", "e")]).await[0];
    let publisher = RecordingPublisher::new();
    publisher.script(id, [passing()]);
    let mut config = config();
    config.patience.backoff = Backoff { base: Duration::from_mins(10), cap: Duration::from_mins(10) };
    let all: Vec<_> = (0..6).map(|_| start(&store, publisher.clone(), config.clone())).collect();
    eventually("the first failure is written", || async { rows(&store).await == [(id, "pending".to_owned(), 1)] })
        .await;
    let mut claimed = 0;
    for running in all {
        claimed += finish(running).await.claimed;
    }
    assert_eq!(claimed, 1);
    assert_eq!(publisher.requests(), [[id]]);
}

#[tokio::test]
async fn a_dispatcher_that_stops_while_idle_ends_at_once() {
    let database = Database::new().await;
    let store = database.store().await;
    let touched = Arc::new(AtomicBool::new(false));
    let publisher = Holding::new("held");
    let running =
        start(&store, publisher.clone(), DispatcherConfig { poll_interval: Duration::from_mins(10), ..config() });
    eventually("it has looked once", || async { store.pool().size() > 0 && !touched.swap(true, Ordering::Relaxed) })
        .await;
    assert_eq!(finish(running).await, Summary::default());
}

/// A person's forgotten transaction on one row holds up that row and nothing else.
#[tokio::test]
async fn a_row_that_somebody_has_locked_keeps_no_other_aggregate_from_being_finalized() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "held")]).await;
    let publisher = Holding::new("held");
    let config = DispatcherConfig { batch_size: 2, ..config() };
    let running = start(&store, publisher.clone(), config);
    publisher.arrivals(1).await;
    let mut person = store.pool().begin().await.unwrap();
    sqlx::query("UPDATE outbox SET headers = '{}' WHERE id = 1").execute(&mut *person).await.unwrap();
    publisher.let_go.add_permits(1);
    eventually("the first is accepted", || async { publisher.recording.accepted_ids() == [1] }).await;
    seed(&store, &[("b", "e"), ("c", "e"), ("b", "e"), ("d", "e"), ("e", "e")]).await;
    eventually("the others are done", || async {
        rows(&store).await[1..].iter().all(|(_, status, _)| status == "done")
    })
    .await;
    person.commit().await.unwrap();
    eventually("all done", || all_done(&store)).await;
    assert_eq!(finish(running).await.lease_lost, 0);
}

/// A publisher whose future panics where it is dropped.
struct Fragile;

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropped in the middle");
    }
}

impl Publisher for Fragile {
    fn destination(&self, _message: &Message) -> Option<Destination> {
        Some(Destination::new("fragile"))
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        Limits { entries: 1, bytes: 1 << 20 }
    }

    fn size(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn publish(&self, _destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        if messages[0].event_type == "hang" {
            let _dropped = PanicsWhenDropped;
            std::future::pending::<()>().await;
        }
        vec![Outcome::published()]
    }
}

#[tokio::test]
async fn a_publish_that_panics_when_it_is_given_up_keeps_no_request_slot() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "hang"), ("b", "e")]).await;
    let config = DispatcherConfig { concurrency: 1, publish_timeout: Duration::from_millis(50), ..config() };
    let summary = drain(&store, Fragile, config).await;
    assert_eq!((summary.unclassified, summary.published), (1, 1));
}

/// P6: the time is taken before the claim is sent, and a publish that starts last still ends inside the lease.
#[tokio::test]
async fn rows_whose_claim_took_too_long_are_handed_back_and_claimed_again_before_they_are_sent() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e")]).await;
    let publisher = RecordingPublisher::new();
    let mut migration = store.pool().begin().await.unwrap();
    sqlx::query("LOCK TABLE outbox").execute(&mut *migration).await.unwrap();
    // a publish may start within 0.5 s of the claim
    let config =
        DispatcherConfig { lease: Duration::from_secs(2), publish_timeout: Duration::from_secs(1), ..config() };
    let running = start(&store, publisher.clone(), config);
    eventually("the claim waits for the table", || async {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' \
             AND query LIKE '-- Called by Store::claim%'",
        )
        .fetch_one(store.pool())
        .await
        .unwrap();
        waiting == 1
    })
    .await;
    // not to order anything: this is the time that the claim takes
    tokio::time::sleep(Duration::from_millis(600)).await;
    migration.rollback().await.unwrap();
    eventually("all done", || all_done(&store)).await;
    let summary = finish(running).await;
    let versions: Vec<_> = publisher.accepted().iter().map(|message| message.lease_version).collect();
    assert_eq!((versions.len(), versions[0] > 1, summary.released >= 1), (1, true, true), "{summary:?} {versions:?}");
}

#[tokio::test]
async fn a_pool_that_leaves_no_connection_to_maintenance_is_refused() {
    let database = Database::new().await;
    for (connections, refused) in [(2, true), (3, false)] {
        let store = Store::connect(database.url(), connections).await.unwrap();
        let dispatcher = Dispatcher::new(store, RecordingPublisher::new(), config());
        let error = dispatcher.err().map(|error| error.to_string());
        let expected = "a pool of 2 connections is too small: one claims, one writes results, and maintenance needs one; \
                        choose 3 or more";
        assert_eq!(error.as_deref(), refused.then_some(expected));
    }
}

#[tokio::test]
async fn a_dispatcher_that_has_nothing_to_do_gives_its_connections_back() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e")]).await;
    let running = start(&store, RecordingPublisher::new(), config());
    eventually("all done", || all_done(&store)).await;
    eventually("every connection is back in the pool", || async {
        store.pool().num_idle() == store.pool().size() as usize
    })
    .await;
    assert_eq!(finish(running).await.published, 1);
}
