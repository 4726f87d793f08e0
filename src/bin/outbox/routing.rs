//! Which queue a message goes to, as the command line says it.

use std::collections::BTreeMap;

use clap::Args;
use ordered_outbox::publisher::sqs::Routes;

use crate::failure::BadUsage;

/// Which queue a message goes to.
#[derive(Args, Debug)]
#[command(next_help_heading = "Queues (choose one way)")]
pub(crate) struct RoutingArgs {
    /// Send every message to this SQS FIFO queue
    #[arg(long, value_name = "URL", env = "OUTBOX_QUEUE_URL", hide_env_values = true, value_parser = queue_url)]
    queue_url: Option<String>,
    /// Send messages of this aggregate type to this SQS FIFO queue; repeat it, or separate by commas
    #[arg(long, value_name = "AGGREGATE_TYPE=URL", env = "OUTBOX_ROUTES", hide_env_values = true)]
    #[arg(value_delimiter = ',', value_parser = route)]
    route: Vec<Route>,
}

/// One `AGGREGATE_TYPE=URL`; empty when the variable is set to nothing.
type Route = Option<(String, String)>;

impl RoutingArgs {
    /// The routes, if exactly one way was chosen.
    pub(crate) fn routes(self) -> Result<Routes, BadUsage> {
        let queue_url = self.queue_url.filter(|url| !url.is_empty());
        let mut routes = BTreeMap::new();
        for (aggregate_type, url) in self.route.into_iter().flatten() {
            if let Some(first) = routes.insert(aggregate_type.clone(), url) {
                return Err(BadUsage::new(format!(
                    "aggregate type `{aggregate_type}` has two routes, one to {first}: keep one of them"
                )));
            }
        }
        match (queue_url, routes.is_empty()) {
            (Some(url), true) => Ok(Routes::All(url)),
            (None, false) => Ok(Routes::ByAggregateType(routes)),
            (None, true) => Err(BadUsage::new(
                "no queue is given: name one for all messages by --queue-url, or one an aggregate type by --route",
            )),
            (Some(_), false) => Err(BadUsage::new(
                "--queue-url and --route are both given (OUTBOX_QUEUE_URL and OUTBOX_ROUTES count too): keep one of them",
            )),
        }
    }
}

fn queue_url(text: &str) -> Result<String, String> {
    // a set but empty variable is how a compose file says "not set"
    if text.is_empty() || text.starts_with("https://") || text.starts_with("http://") {
        return Ok(text.to_owned());
    }
    Err("give the queue's URL, as `aws sqs get-queue-url` prints it".to_owned())
}

fn route(text: &str) -> Result<Route, String> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.split_once('=') {
        Some((aggregate_type, url)) if !aggregate_type.is_empty() && !url.is_empty() => {
            Ok(Some((aggregate_type.to_owned(), queue_url(url)?)))
        }
        _ => {
            Err("write it as AGGREGATE_TYPE=URL, for example order=https://sqs.eu-west-1.amazonaws.com/123/orders.fifo"
                .to_owned())
        }
    }
}
