//! `outbox retry`

use clap::Args;
use ordered_outbox::MessageId;
use serde_json::json;

use crate::database::DatabaseArgs;
use crate::output::Output;
use crate::values::message_id;

/// Which dead message to send again.
#[derive(Args, Debug)]
pub(crate) struct RetryArgs {
    /// The message id
    #[arg(value_parser = message_id, allow_negative_numbers = true)]
    id: MessageId,
}

/// Sends a dead message again.
pub(crate) async fn execute(args: RetryArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let id = args.id;
    database.open().await?.retry(id).await?;
    output
        .write(&json!({ "id": id, "status": "pending" }), || format!("message {id} is sent again, its attempts afresh"))
}
