//! `outbox`: runs a dispatcher, and answers the questions of the people who run one.
//!
//! One subcommand a file. Results go to standard output, everything else to standard error.

use std::process::ExitCode;

mod check;
mod cli;
mod database;
mod dispatch;
mod enqueue;
mod failure;
mod gates;
mod lines;
mod logging;
mod migrate;
mod output;
mod progress;
mod purge;
mod retry;
mod routing;
mod run;
mod settings;
mod show;
mod signals;
mod skip;
mod status;
mod stdin;
mod values;

use cli::{Cli, Command};
use output::Output;

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error),
    };
    let output = Output::new(cli.global.json);
    match start(cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, output),
    }
}

fn start(cli: Cli, output: Output) -> anyhow::Result<()> {
    logging::init(&cli.global)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let result = runtime.block_on(execute(cli, output));
    // a dispatcher that ran out of its grace period leaves tasks behind, and nothing may wait for them
    runtime.shutdown_background();
    result
}

async fn execute(cli: Cli, output: Output) -> anyhow::Result<()> {
    let database = &cli.global.database;
    match cli.command {
        Command::Migrate => migrate::execute(database, output).await,
        Command::Check(args) => check::execute(args, database, output).await,
        Command::Run(args) => run::execute(args, database, output).await,
        Command::Enqueue(args) => enqueue::execute(args, database, output).await,
        Command::Status => status::execute(database, output).await,
        Command::Gates(args) => gates::execute(args, database, output).await,
        Command::Show(args) => show::execute(args, database, output).await,
        Command::Retry(args) => retry::execute(args, database, output).await,
        Command::Skip(args) => skip::execute(args, database, output).await,
        Command::Purge(args) => purge::execute(args, database, output).await,
    }
}
