//! `outbox show`

use anyhow::Context as _;
use clap::Args;
use ordered_outbox::MessageId;
use ordered_outbox::store::{AnswerError, Head, Row};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::database::DatabaseArgs;
use crate::output::{self, Output, one_line};
use crate::values::message_id;

/// Which message to show.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The message id
    #[arg(value_parser = message_id, allow_negative_numbers = true)]
    id: MessageId,
    /// Show payload and headers too; they may be personal data
    #[arg(long)]
    payload: bool,
}

/// The row, and its contents when they were asked for.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    row: &'a Row,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
}

/// Prints one row.
pub(crate) async fn execute(args: ShowArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let row = database.open().await?.show(args.id).await?.ok_or(AnswerError::Unknown(args.id))?;
    let contents = |text| args.payload.then(|| serde_json::from_str(text)).transpose();
    let headers = contents(&row.headers).context("read the headers")?;
    let payload = contents(&row.payload).context("read the payload")?;
    output.write(&Document { row: &row, headers, payload }, || text(&row, args.payload))
}

fn text(row: &Row, payload: bool) -> String {
    let mut fields = vec![
        ("id", row.id.to_string()),
        ("aggregate", one_line(&row.aggregate_id)),
        ("type", one_line(&row.aggregate_type)),
        ("event", one_line(&row.event_type)),
        ("status", row.status.to_string()),
        ("attempts", row.attempts.to_string()),
        ("created at", row.created_at.to_rfc3339()),
        ("available at", row.available_at.to_rfc3339()),
        ("waits behind", row.waits_behind.as_ref().map_or_else(|| "nothing".to_owned(), head)),
        ("lease version", row.lease_version.to_string()),
    ];
    let optional = [
        ("lease owner", row.lease_owner.clone()),
        ("lease until", row.lease_until.map(|at| at.to_rfc3339())),
        ("last error", row.last_error.clone()),
        ("done at", row.done_at.map(|at| at.to_rfc3339())),
        ("skipped because", row.skip_reason.clone()),
        ("broker message id", row.broker_message_id.clone()),
        ("broker sequence", row.broker_sequence.clone()),
        ("headers", payload.then(|| row.headers.clone())),
        ("payload", payload.then(|| row.payload.clone())),
    ];
    fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name, one_line(&value?)))));
    output::fields(fields)
}

fn head(head: &Head) -> String {
    format!("message {} ({}, available at {})", head.id, head.status, head.available_at.to_rfc3339())
}
