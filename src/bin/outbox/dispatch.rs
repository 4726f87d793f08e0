//! What `run` and `check` are given: queues, settings, and how much of the database.

use clap::Args;
use ordered_outbox::publisher::SqsPublisher;
use ordered_outbox::publisher::sqs::Routes;
use ordered_outbox::{Check, DispatcherConfig, State, Store, StoreError};

use crate::database::DatabaseArgs;
use crate::failure;
use crate::routing::RoutingArgs;
use crate::settings::SettingsArgs;
use crate::values::not_blank;

/// What a dispatcher needs to know.
#[derive(Args, Debug)]
pub(crate) struct DispatchArgs {
    /// Name in front of every deduplication id; two outboxes on one queue need two [default: derived
    /// from the database]
    #[arg(long, env = "OUTBOX_SOURCE", hide_env_values = true, value_name = "NAME", value_parser = not_blank)]
    source: Option<String>,
    /// Most database connections: one claims, one writes results, and maintenance needs one
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 4, value_parser = clap::value_parser!(u32).range(3..=1_000))]
    database_connections: u32,
    /// Messages a second that the busiest queue is expected to get, to be checked against its throughput limit
    #[arg(long, env = "OUTBOX_EXPECTED_RATE", hide_env_values = true, value_name = "MESSAGES")]
    expected_rate: Option<u32>,
    #[command(flatten)]
    routing: RoutingArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// Everything that was looked at, and what to start with if all is well.
pub(crate) struct Checked {
    /// In the order of settings, database, queues.
    pub(crate) checks: Vec<Check>,
    /// How many problems the command line and the environment are to blame for.
    pub(crate) bad_usage: usize,
    /// The settings.
    pub(crate) config: DispatcherConfig,
    /// Unless there is a problem with what it needs.
    pub(crate) ready: Option<Ready>,
}

/// What a dispatcher starts with.
pub(crate) struct Ready {
    pub(crate) store: Store,
    pub(crate) routes: Routes,
    pub(crate) source: String,
}

impl Checked {
    /// How many checks found this.
    pub(crate) fn count(&self, state: State) -> usize {
        self.checks.iter().filter(|check| check.state == state).count()
    }
}

impl DispatchArgs {
    /// Looks at the settings, at the database and at the queues; at all of them, whatever is wrong with one.
    pub(crate) async fn check(self, database: &DatabaseArgs) -> Checked {
        let config = self.settings.config();
        let mut checks = config.checks();
        let routes = self.routing.routes().map_err(|error| checks.push(problem("routes", error))).ok();
        let url = database.url().map_err(|error| checks.push(problem("database URL", error))).ok();
        let bad_usage = checks.iter().filter(|check| check.state == State::Problem).count();

        let outbox = async {
            match url {
                Some(url) => look(&url, self.database_connections, self.source).await,
                None => Outbox::default(),
            }
        };
        let queues = async {
            match &routes {
                Some(routes) => SqsPublisher::checks(routes, config.publish_timeout, self.expected_rate).await,
                None => Vec::new(),
            }
        };
        let (outbox, queues) = tokio::join!(Box::pin(outbox), Box::pin(queues));
        checks.extend(outbox.checks);
        checks.extend(queues);
        let ready = outbox.opened.zip(routes).map(|((store, source), routes)| Ready { store, routes, source });
        Checked { checks, bad_usage: bad_usage + usize::from(outbox.is_bad_usage), config, ready }
    }
}

/// What the database side came to.
#[derive(Default)]
struct Outbox {
    checks: Vec<Check>,
    opened: Option<(Store, String)>,
    is_bad_usage: bool,
}

async fn look(url: &str, connections: u32, source: Option<String>) -> Outbox {
    let store = match Store::connect(url, connections).await {
        Ok(store) => store,
        Err(error) => {
            let is_bad_usage = matches!(error, StoreError::Url);
            return Outbox { checks: vec![problem("connection", error)], opened: None, is_bad_usage };
        }
    };
    let mut checks = store.checks().await;
    let source = match source {
        Some(source) => Ok(source),
        None => store.source().await,
    };
    let opened = match source {
        Ok(source) => {
            checks.push(SqsPublisher::check_source(&source));
            Some((store, source))
        }
        // why it could not be read is among the problems already, unless it is one of its own
        Err(error) => {
            if checks.iter().all(|check| check.state != State::Problem) {
                checks.push(problem("source name", error));
            }
            None
        }
    };
    Outbox { checks, opened, is_bad_usage: false }
}

fn problem(name: &'static str, error: impl Into<anyhow::Error>) -> Check {
    Check::problem(name, &failure::sentence(&error.into()))
}
