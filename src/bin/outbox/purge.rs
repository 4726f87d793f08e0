//! `outbox purge`

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use crate::database::DatabaseArgs;
use crate::output::Output;
use crate::progress;
use crate::values::{Span, messages};

/// What to delete.
#[derive(Args, Debug)]
pub(crate) struct PurgeArgs {
    /// Delete messages that have been done for longer than this, for example 12h or 7d
    #[arg(long, value_name = "DURATION", value_parser = Span::any, allow_hyphen_values = true)]
    older_than: Span,
    /// Messages deleted by one transaction, 1 to 100000
    #[arg(long, value_name = "MESSAGES", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch_size: u32,
}

/// Deletes done messages, batch by batch.
pub(crate) async fn execute(args: PurgeArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let store = database.open().await?;
    let progress = progress::counter("purged");
    let mut purged = 0;
    loop {
        let batch = store
            .purge(args.older_than.0, args.batch_size)
            .await
            .with_context(|| format!("purged {} before it failed, run it again for the others", messages(purged)))?;
        purged += batch;
        progress.set_position(purged);
        // more grow old meanwhile: an incomplete batch, not an empty one, is the end
        if batch < u64::from(args.batch_size) {
            break;
        }
    }
    progress.finish_and_clear();
    output.write(&json!({ "purged": purged }), || format!("purged {}", messages(purged)))
}
