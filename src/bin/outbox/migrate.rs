//! `outbox migrate`

use serde_json::json;

use crate::database::DatabaseArgs;
use crate::output::Output;

/// Applies what is missing.
pub(crate) async fn execute(database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let migrated = database.open_unchecked().await?.migrate().await?;
    output.write(&json!({ "from": migrated.from, "to": migrated.to }), || {
        if migrated.from == migrated.to {
            format!("the schema is up to date at version {}", migrated.to)
        } else {
            format!("the schema went from version {} to {}", migrated.from, migrated.to)
        }
    })
}
