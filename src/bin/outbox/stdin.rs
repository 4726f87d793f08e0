//! `outbox enqueue --stdin`: JSON lines, one transaction a chunk.

use std::io;

use anyhow::anyhow;
use clap::Args;
use ordered_outbox::{EnqueueError, MessageId, NewMessage, Store, enqueue_many};

use crate::database::DatabaseArgs;
use crate::enqueue::Written;
use crate::lines::{Chunk, LineError, Lines};
use crate::output::Output;
use crate::progress;
use crate::values::messages;

/// Many messages at once.
#[derive(Args, Debug)]
#[command(next_help_heading = "Many messages")]
pub(crate) struct StdinArgs {
    /// Read one JSON object a line from standard input, headers are optional: `{"aggregate_type": TEXT,
    /// "aggregate_id": TEXT, "event_type": TEXT, "payload": JSON, "headers": {NAME: TEXT}}`
    #[arg(long, conflicts_with_all = ["aggregate_type", "aggregate_id", "event_type", "payload", "payload_file", "header"])]
    stdin: bool,
    /// The same as --stdin
    #[arg(value_name = "-", value_parser = ["-"], hide_possible_values = true)]
    #[arg(conflicts_with_all = ["aggregate_type", "aggregate_id", "event_type", "payload", "payload_file", "header"])]
    dash: Option<String>,
    /// Most messages of one transaction, 1 to 10000; all of them are written or none
    #[arg(long, value_name = "MESSAGES", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    chunk_size: u32,
    /// Pass over the first lines, to go on after a line that was refused
    #[arg(long, value_name = "LINES", default_value_t = 0)]
    skip_lines: u64,
}

impl StdinArgs {
    /// Whether messages come from standard input.
    pub(crate) const fn is_chosen(&self) -> bool {
        self.stdin || self.dash.is_some()
    }
}

/// Why a chunk was not written.
enum ChunkError {
    /// One line of it is to blame.
    Line(LineError),
    /// The database failed before the commit.
    Failed(anyhow::Error),
    /// The reply to the commit is missing.
    Unknown(anyhow::Error),
}

/// Writes every line; stops at the first one that is refused.
pub(crate) async fn execute(args: &StdinArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let store = database.open().await?;
    let mut lines = Lines::new(io::stdin().lock(), args.skip_lines);
    let progress = progress::counter("enqueued");
    let mut done = Written::default();
    let mut committed = args.skip_lines;
    let result = loop {
        // a chunk is read to its end before its transaction begins: a slow writer holds no snapshot open
        let chunk = match lines.next_chunk(args.chunk_size as usize) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break Ok(()),
            Err(error) => break Err(ChunkError::Line(error)),
        };
        match write(&store, &chunk).await {
            Ok(ids) => done.add(&ids),
            Err(error) => break Err(error),
        }
        committed = chunk.last_line;
        progress.set_position(done.enqueued);
    };
    progress.finish_and_clear();
    result.map_err(|error| stopped(error, args.skip_lines, committed))?;
    if done.enqueued == 0 {
        return Err(match args.skip_lines {
            0 => anyhow!("standard input holds no message: write one JSON object a line"),
            skipped => anyhow!("standard input holds no message after line {skipped}: use a smaller --skip-lines"),
        });
    }
    output.write(&done, || match (done.first_id, done.last_id) {
        (Some(first), Some(last)) => format!("enqueued {}, ids {first} to {last}", messages(done.enqueued)),
        _ => format!("enqueued {}", messages(done.enqueued)),
    })
}

impl Written {
    fn add(&mut self, ids: &[MessageId]) {
        self.enqueued += ids.len() as u64;
        self.first_id = self.first_id.or_else(|| ids.first().copied());
        self.last_id = ids.last().copied().or(self.last_id);
    }
}

async fn write(store: &Store, chunk: &Chunk) -> Result<Vec<MessageId>, ChunkError> {
    let failed = |error: anyhow::Error| ChunkError::Failed(error.context(format!("lines {}", chunk.range())));
    let mut tx = store.pool().begin().await.map_err(|error| failed(error.into()))?;
    match enqueue_many(&mut tx, &chunk.messages).await {
        Ok(ids) => {
            tx.commit().await.map_err(|error| {
                ChunkError::Unknown(anyhow::Error::from(error).context(format!("commit of lines {}", chunk.range())))
            })?;
            Ok(ids)
        }
        Err(error) => {
            // given back before the culprit is looked for: the pool has one connection
            drop(tx);
            match culprit(store, &chunk.messages).await {
                Some((index, reason)) => {
                    Err(ChunkError::Line(LineError { line: chunk.line_of(index), reason: reason.to_string() }))
                }
                None => Err(failed(error.into())),
            }
        }
    }
}

/// PostgreSQL refuses some legal JSON (half a surrogate pair, a number of 200,000 digits) and a statement of a
/// thousand rows does not say which one. Tries them one by one and writes none.
async fn culprit(store: &Store, messages: &[NewMessage]) -> Option<(usize, EnqueueError)> {
    let mut tx = store.pool().begin().await.ok()?;
    for (index, message) in messages.iter().enumerate() {
        if let Err(error) = ordered_outbox::enqueue(&mut tx, message).await {
            return Some((index, error));
        }
    }
    None
}

/// What went wrong, what is safe, and how to go on.
fn stopped(error: ChunkError, skipped: u64, committed: u64) -> anyhow::Error {
    let safe = match committed - skipped {
        0 => "nothing was written".to_owned(),
        1 => format!("line {committed} is written, go on with --skip-lines {committed}"),
        _ => format!("lines {} to {committed} are written, go on with --skip-lines {committed}", skipped + 1),
    };
    match error {
        ChunkError::Line(LineError { line, reason }) => anyhow!("line {line}: {reason}; {safe}"),
        ChunkError::Failed(error) => anyhow!("{error:#}; {safe}"),
        ChunkError::Unknown(error) => {
            anyhow!("{error:#}; whether it was written is unknown, look first; before it, {safe}")
        }
    }
}
