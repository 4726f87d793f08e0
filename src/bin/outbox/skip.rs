//! `outbox skip`

use clap::Args;
use ordered_outbox::MessageId;
use serde_json::json;

use crate::database::DatabaseArgs;
use crate::output::Output;
use crate::values::{message_id, not_blank};

/// Which dead message is never sent.
#[derive(Args, Debug)]
pub(crate) struct SkipArgs {
    /// The message id
    #[arg(value_parser = message_id, allow_negative_numbers = true)]
    id: MessageId,
    /// Why it is never sent; kept with the message for those who ask later
    #[arg(long, value_name = "TEXT", value_parser = not_blank)]
    reason: String,
}

/// Declares a dead message done without sending it.
pub(crate) async fn execute(args: SkipArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let SkipArgs { id, reason } = args;
    database.open().await?.skip(id, &reason).await?;
    output.write(&json!({ "id": id, "status": "done", "skip_reason": reason }), || {
        format!("message {id} is skipped, its aggregate goes on")
    })
}
