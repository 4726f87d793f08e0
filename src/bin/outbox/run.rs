//! `outbox run`

use clap::Args;
use humantime::format_duration;
use ordered_outbox::publisher::SqsPublisher;
use ordered_outbox::publisher::sqs::Routes;
use ordered_outbox::{Dispatcher, DispatcherConfig, State, Summary};
use tracing::{info, warn};

use crate::database::DatabaseArgs;
use crate::dispatch::{DispatchArgs, Ready};
use crate::failure::{self, Refused};
use crate::output::Output;
use crate::signals;

/// How to run a dispatcher.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// End when nothing due is left, instead of waiting for more
    #[arg(long)]
    drain: bool,
    #[command(flatten)]
    dispatch: DispatchArgs,
}

/// Dispatches until a signal, or until nothing due is left.
pub(crate) async fn execute(args: RunArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let drain = args.drain;
    let stop = signals::stop_token()?;
    let setup = dispatcher(args.dispatch, database);
    // everything that can be refused is refused here, before anything is claimed
    let dispatcher = tokio::select! {
        dispatcher = setup => Some(dispatcher?),
        () = stop.cancelled() => None,
    };
    let summary = match dispatcher {
        Some(dispatcher) if drain => dispatcher.drain(stop).await?,
        Some(dispatcher) => dispatcher.run(stop).await?,
        None => Summary::default(),
    };
    output.write(&summary, || text(&summary))
}

async fn dispatcher(args: DispatchArgs, database: &DatabaseArgs) -> anyhow::Result<Dispatcher<SqsPublisher>> {
    let checked = args.check(database).await;
    let problems = checked.checks.iter().filter(|check| check.state == State::Problem);
    let problems: Vec<_> = problems.map(|check| check.finding.clone()).collect();
    let config = checked.config;
    let Some(Ready { store, routes, source }) = checked.ready.filter(|_| problems.is_empty()) else {
        let is_bad_usage = problems.len() == checked.bad_usage;
        return Err(Refused { problems, is_bad_usage }.into());
    };
    for check in checked.checks.iter().filter(|check| check.state != State::Ok) {
        let (queue, finding) = (check.subject.as_deref(), failure::safe(&check.finding));
        warn!(queue, check = check.name, state = %check.state, "{finding}");
    }
    let queues = queues(&routes);
    let publisher = SqsPublisher::connect(routes, &source, config.publish_timeout).await?;
    announce(&config, &queues, &source);
    Ok(Dispatcher::new(store, publisher, config)?)
}

fn queues(routes: &Routes) -> String {
    match routes {
        Routes::All(url) => url.clone(),
        Routes::ByAggregateType(routes) => {
            let routes: Vec<_> = routes.iter().map(|(aggregate_type, url)| format!("{aggregate_type}={url}")).collect();
            routes.join(",")
        }
    }
}

fn announce(config: &DispatcherConfig, queues: &str, source: &str) {
    info!(
        version = env!("CARGO_PKG_VERSION"),
        owner = config.owner,
        queues,
        source,
        lease = %format_duration(config.lease),
        publish_timeout = %format_duration(config.publish_timeout),
        batch_size = config.batch_size,
        batch_bytes = config.batch_bytes,
        run_length = config.run_length,
        group_batching = config.group_batching,
        concurrency = config.concurrency,
        max_attempts = config.patience.max_attempts,
        "dispatching"
    );
}

fn text(summary: &Summary) -> String {
    let counts = [
        ("published", summary.published),
        ("backed off", summary.backoff),
        ("deferred", summary.deferred),
        ("dead", summary.dead),
        ("handed back", summary.released),
        ("unavailable", summary.unavailable),
        ("outages", summary.outages),
        ("unclassified", summary.unclassified),
        ("lease lost", summary.lease_lost),
        ("stranded", summary.stranded),
        ("order gaps", summary.order_gaps),
    ];
    let others = counts.iter().skip(1).filter(|(_, count)| *count > 0);
    let parts: Vec<_> = counts.iter().take(1).chain(others).map(|(name, count)| format!("{count} {name}")).collect();
    format!("claimed {}: {}", summary.claimed, parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_in_words_names_what_was_published_and_whatever_else_happened() {
        assert_eq!(text(&Summary::default()), "claimed 0: 0 published");
        let summary =
            Summary { claimed: 9, published: 7, backoff: 1, released: 1, order_gaps: 1, ..Summary::default() };
        assert_eq!(text(&summary), "claimed 9: 7 published, 1 backed off, 1 handed back, 1 order gaps");
    }
}
