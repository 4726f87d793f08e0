//! The command line: subcommands, and what they share.

use std::ffi::OsString;

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::database::DatabaseArgs;
use crate::{check, enqueue, gates, purge, retry, run, show, skip};

/// Below the help of every subcommand.
const AFTER_HELP: &str = "\
Database: set DATABASE_URL=postgres://user:password@host:5432/database, or name a file that holds it; it is never an \
argument, because every user of the machine can read those.

Exit codes: 0 done; 1 failed or refused; 2 bad usage: the command line or the environment has to change.";

/// Ordered per-aggregate transactional outbox: PostgreSQL to Amazon SQS FIFO
#[derive(Debug, Parser)]
#[command(name = "outbox", version, max_term_width = 100, arg_required_else_help = false)]
pub(crate) struct Cli {
    /// What every subcommand takes.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every subcommand takes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Write one JSON document to standard output; errors and logs are JSON lines on standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to log, for example `debug` or `info,ordered_outbox=debug`
    #[arg(long, global = true, env = "OUTBOX_LOG", hide_env_values = true, value_name = "FILTER")]
    #[arg(default_value = "info")]
    pub(crate) log: String,
    /// Where the database is.
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the outbox table or bring it up to date; safe to repeat
    Migrate,
    /// Look at settings, database and queues, and tell every problem with its remedy; sends nothing
    Check(check::CheckArgs),
    /// Dispatch messages to SQS FIFO queues until SIGTERM or SIGINT
    Run(run::RunArgs),
    /// Write messages into the outbox
    Enqueue(enqueue::EnqueueArgs),
    /// Tell how much waits, and what keeps it from moving
    Status,
    /// List the dead heads, and how much waits behind each
    Gates(gates::GatesArgs),
    /// Show one message, and what it waits behind
    Show(show::ShowArgs),
    /// Send a dead message again, its attempts afresh
    Retry(retry::RetryArgs),
    /// Never send a dead message, and let its aggregate go on
    Skip(skip::SkipArgs),
    /// Delete messages that have been done for long enough
    Purge(purge::PurgeArgs),
}

/// Reads the command line and the environment.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let command = Cli::command().after_help(AFTER_HELP).mut_subcommands(|command| command.after_help(AFTER_HELP));
    Cli::from_arg_matches(&command.try_get_matches_from(args)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
