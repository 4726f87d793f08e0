//! Outages as AWS makes them: the whole dispatcher with the real SDK on real PostgreSQL, against an SQS that breaks on
//! purpose. What went wrong must have killed nothing and cost no attempt, and order must hold. P2, P7, P9

#[path = "../support/mod.rs"]
mod support;

mod clock;
mod credentials;
mod database;
mod destination;
mod entries;
mod log;
mod random;
mod replay;
mod stale;
mod unsendable;

use std::collections::BTreeMap;
use std::time::Duration;

use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::Patience;
use ordered_outbox::publisher::SqsPublisher;
use ordered_outbox::publisher::sqs::Routes;
use ordered_outbox::{Dispatcher, DispatcherConfig, DispatcherError, MessageId, Store, Summary};
use sqlx::{Connection as _, PgConnection};
use support::sqs::{Accepted, Sqs};
use support::{Database, rows};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const QUEUE: &str = "orders.fifo";

/// Short waits, so that what must come again comes soon; nothing is ordered by them.
fn quick() -> DispatcherConfig {
    DispatcherConfig {
        poll_interval: Duration::from_millis(50),
        publish_timeout: Duration::from_secs(5),
        breaker: Backoff { base: Duration::from_millis(5), cap: Duration::from_millis(40) },
        patience: Patience {
            backoff: Backoff { base: Duration::from_millis(20), cap: Duration::from_millis(50) },
            ..Patience::default()
        },
        ..DispatcherConfig::default()
    }
}

/// An outbox and the queue it feeds.
struct Outbox {
    database: Database,
    store: Store,
    sqs: Sqs,
}

struct Running {
    stop: CancellationToken,
    dispatcher: JoinHandle<Result<Summary, DispatcherError>>,
}

impl Running {
    async fn finish(self) -> Summary {
        self.stop.cancel();
        self.dispatcher.await.unwrap().unwrap()
    }
}

impl Outbox {
    async fn new() -> Self {
        let database = Database::new().await;
        let store = database.store().await;
        let sqs = Sqs::start();
        sqs.create(QUEUE, &[]);
        Self { database, store, sqs }
    }

    async fn publisher(&self, publish_timeout: Duration) -> SqsPublisher {
        let routes = Routes::All(self.sqs.url(QUEUE));
        SqsPublisher::connect_at(&self.sqs.endpoint(), routes, "test", publish_timeout).await.unwrap()
    }

    async fn start(&self, config: DispatcherConfig) -> Running {
        self.start_on(self.store.clone(), config).await
    }

    /// With a pool of its own.
    async fn start_on(&self, store: Store, config: DispatcherConfig) -> Running {
        let publisher = self.publisher(config.publish_timeout).await;
        let dispatcher = Dispatcher::new(store, publisher, config).unwrap();
        let stop = CancellationToken::new();
        Running { stop: stop.clone(), dispatcher: tokio::spawn(dispatcher.run(stop)) }
    }

    /// Commits a message of each of so many aggregates, as many times, in turn; the ids are 1, 2, 3 and so on.
    async fn seed(&self, aggregates: usize, each: usize) -> Vec<MessageId> {
        let names: Vec<_> = (0..aggregates).map(|n| format!("order-{n}")).collect();
        let messages: Vec<_> = (0..each).flat_map(|_| names.iter().map(|name| (name.as_str(), "e"))).collect();
        support::seed(&self.store, &messages).await
    }

    /// Commits a message of each of `some` of so many aggregates, from one on and round.
    async fn seed_some(&self, from: usize, some: usize, aggregates: usize) {
        let names: Vec<_> = (from..from + some).map(|n| format!("order-{}", n % aggregates)).collect();
        support::seed(&self.store, &names.iter().map(|name| (name.as_str(), "e")).collect::<Vec<_>>()).await;
    }

    async fn all_done(&self) -> bool {
        let sql = "SELECT NOT EXISTS (SELECT FROM outbox WHERE status <> 'done')";
        sqlx::query_scalar(sql).fetch_one(self.store.pool()).await.unwrap()
    }

    /// As [`all_done`](Self::all_done), by a connection that was not cut.
    async fn all_done_afresh(&self) -> bool {
        let mut connection = PgConnection::connect(self.database.url()).await.unwrap();
        let sql = "SELECT bool_and(status = 'done') FROM outbox";
        sqlx::query_scalar(sql).fetch_one(&mut connection).await.unwrap()
    }

    /// Every message was delivered once, in order, and no attempt was spent but the one that succeeded.
    async fn assert_untouched_by_it(&self) {
        let states = rows(&self.store).await;
        assert!(states.iter().all(|(_, status, attempts)| status == "done" && *attempts == 1), "{states:?}");
        let delivered = self.sqs.delivered();
        for (group, ids) in &delivered {
            assert!(ids.is_sorted_by(|a, b| a < b), "{group}: {ids:?}");
        }
        let mut ids: Vec<_> = delivered.into_values().flatten().collect();
        ids.sort_unstable();
        assert_eq!(ids, states.iter().map(|(id, _, _)| *id).collect::<Vec<_>>());
    }
}

/// Row ids by group in the order in which the queue took each of them first.
fn first_accepted(accepted: &[Accepted]) -> BTreeMap<String, Vec<MessageId>> {
    let mut first = BTreeMap::<_, Vec<_>>::new();
    for accepted in accepted {
        let ids = first.entry(accepted.group.clone()).or_default();
        if !ids.contains(&accepted.outbox_id) {
            ids.push(accepted.outbox_id);
        }
    }
    first
}
