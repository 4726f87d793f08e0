//! Orders and payments through the outbox, with everything that goes wrong on a bad day: `make demo`.
//!
//! Eight producers write 2,000 order lifecycles of five events and one hot merchant ledger of 2,000 events, each event
//! in the transaction of the business change it tells of. Three `outbox run` processes move them to two FIFO queues.
//! Halfway one of them is killed with SIGKILL while it holds leases, and one order holds an event that SQS refuses: it
//! gates its order until it is skipped. A consumer that knows nothing of the crate receives everything and checks the
//! order; at the end the database is asked what should have arrived. Any difference ends with exit status 1.
//!
//! Where to look: `producers.rs` for the use of the crate, `consumer.rs` and `tracker.rs` for a consumer that
//! deduplicates by a high-water mark, `scenario.rs` for the course of events.

mod board;
mod consumer;
mod count;
mod dispatchers;
mod gate;
mod outbox;
mod producers;
mod progress;
mod queues;
mod report;
mod scenario;
mod scratch;
mod tracker;
mod verify;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;

use board::Board;
use outbox::Outbox;
use report::Report;
use scratch::{Scratch, Turn};

/// 12,000 messages through PostgreSQL and SQS, one dispatcher killed, one gate: watch order hold.
#[derive(Debug, Parser)]
struct Args {
    /// Orders of five events each; the merchant ledger gets one event an order
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(20..=100_000))]
    orders: u64,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
    /// Give up after this time
    #[arg(long, default_value = "5m", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    match demo(&args).await {
        Ok(report) => report.publish(args.json),
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn demo(args: &Args) -> Result<Report> {
    let database_url = variable("DATABASE_URL")?;
    // The demo purges its queues: it must be sure that they are not somebody's real ones.
    variable("AWS_ENDPOINT_URL")?;
    let program = Outbox::find()?;
    let turn = Turn::wait(&database_url).await?;
    let mut signals = Signals::install()?;
    let scratch = Scratch::create(turn).await?;

    let board = Arc::new(Board::new(args.orders));
    let mut run = JoinSet::new();
    run.spawn(scenario::run(
        scratch.name().to_owned(),
        scratch.options(),
        Outbox::new(program, scratch.url()),
        Arc::clone(&board),
    ));
    let result = tokio::select! {
        Some(joined) = run.join_next() => joined.context("the demo itself failed").flatten(),
        name = signals.next() => Err(anyhow!("interrupted by {name}")),
        () = tokio::time::sleep(args.timeout) => Err(anyhow!(
            "not finished after {}: {}",
            humantime::format_duration(args.timeout),
            board.line()
        )),
    };
    // Ending the run kills its dispatchers, so nothing is connected to the database that is dropped next.
    run.shutdown().await;
    board.close();
    scratch.drop().await?;
    result
}

fn variable(name: &str) -> Result<String> {
    let value = std::env::var(name).unwrap_or_default();
    ensure!(!value.is_empty(), "{name} is not set: run `make demo`, or `. localstack/env` first");
    Ok(value)
}

/// Ctrl-C and its relatives, so that the database is dropped and no dispatcher is left behind.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn install() -> Result<Self> {
        let on = |kind| signal(kind).context("cannot handle signals");
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}
