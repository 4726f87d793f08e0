//! `outbox enqueue`

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use ordered_outbox::{MessageId, NewMessage, Store};
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::lines::MAX_LINE_BYTES;
use crate::output::Output;
use crate::stdin::{self, StdinArgs};
use crate::values::pair;

/// What to write.
#[derive(Args, Debug)]
#[command(next_help_heading = "One message")]
pub(crate) struct EnqueueArgs {
    /// Kind of aggregate, for example `order`; routes the message to a queue
    #[arg(long, value_name = "NAME", required_unless_present_any = ["stdin", "dash"])]
    aggregate_type: Option<String>,
    /// Order key and SQS message group id, for example `order-42`; 1-128 ASCII letters, digits and punctuation
    #[arg(long, value_name = "ID", required_unless_present_any = ["stdin", "dash"])]
    aggregate_id: Option<String>,
    /// What happened, for example `OrderPlaced`
    #[arg(long, value_name = "NAME", required_unless_present_any = ["stdin", "dash"])]
    event_type: Option<String>,
    /// The body, one JSON value
    #[arg(long, value_name = "JSON", required_unless_present_any = ["stdin", "dash", "payload_file"])]
    #[arg(allow_hyphen_values = true, conflicts_with = "payload_file")]
    payload: Option<String>,
    /// File that holds the body
    #[arg(long, value_name = "PATH")]
    payload_file: Option<PathBuf>,
    /// A message attribute; repeat it for more
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    header: Vec<(String, String)>,
    #[command(flatten)]
    stdin: StdinArgs,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Written {
    /// Messages.
    pub(crate) enqueued: u64,
    /// Id of the first.
    pub(crate) first_id: Option<MessageId>,
    /// Id of the last.
    pub(crate) last_id: Option<MessageId>,
}

/// Writes one message, or as many as there are lines.
pub(crate) async fn execute(args: EnqueueArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    if args.stdin.is_chosen() {
        return stdin::execute(&args.stdin, database, output).await;
    }
    let message = args.message()?;
    message.validate()?;
    let id = write_one(&database.open().await?, &message).await?;
    output.write(&Written { enqueued: 1, first_id: Some(id), last_id: Some(id) }, || {
        format!("enqueued message {id} of {}", message.aggregate_id)
    })
}

async fn write_one(store: &Store, message: &NewMessage) -> anyhow::Result<MessageId> {
    let mut tx = store.pool().begin().await.context("begin")?;
    // there is one message, so its place in the call is no news
    let id = ordered_outbox::enqueue(&mut tx, message).await.context("the message was not written")?;
    tx.commit().await.context("whether the message was written is unknown, look before it is repeated: commit")?;
    Ok(id)
}

impl EnqueueArgs {
    fn message(self) -> anyhow::Result<NewMessage> {
        let payload = match (self.payload, &self.payload_file) {
            (Some(payload), _) => payload,
            (None, Some(path)) => read_payload(path)?,
            (None, None) => bail!("no payload is given: use --payload or --payload-file"),
        };
        // clap has seen to it that the three names are there; empty ones are refused by the library
        let [aggregate_type, aggregate_id, event_type] =
            [self.aggregate_type, self.aggregate_id, self.event_type].map(Option::unwrap_or_default);
        let message = NewMessage::from_json(aggregate_type, aggregate_id, event_type, payload);
        Ok(self.header.into_iter().fold(message, |message, (name, value)| message.header(name, value)))
    }
}

fn read_payload(path: &Path) -> anyhow::Result<String> {
    let cannot_read = || format!("cannot read the payload from {}", path.display());
    let file = std::fs::File::open(path).with_context(cannot_read)?;
    let mut bytes = Vec::new();
    file.take(MAX_LINE_BYTES + 1).read_to_end(&mut bytes).with_context(cannot_read)?;
    if bytes.len() as u64 > MAX_LINE_BYTES {
        bail!("the payload in {} is longer than {} MiB: SQS takes 1 MiB", path.display(), MAX_LINE_BYTES >> 20);
    }
    String::from_utf8(bytes).with_context(|| format!("the payload in {} is not UTF-8", path.display()))
}
