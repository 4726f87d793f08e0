//! What should have arrived, asked of the database when all is over.

use std::time::Duration;

use anyhow::{Context as _, Result};
use sqlx::PgPool;

use crate::count::Rows;

pub(crate) async fn rows(pool: &PgPool) -> Result<Rows> {
    let all: Vec<(i64, String, bool)> = sqlx::query_as("SELECT id, status, skip_reason IS NOT NULL FROM outbox")
        .fetch_all(pool)
        .await
        .context("cannot read the outbox")?;
    let mut rows = Rows::default();
    for (id, status, skipped) in all {
        rows.committed.insert(id);
        rows.unfinished += u64::from(status != "done");
        if skipped {
            rows.skipped.insert(id);
        }
    }
    Ok(rows)
}

/// Waits until no row is unfinished.
pub(crate) async fn until_all_done(pool: &PgPool) -> Result<()> {
    loop {
        let unfinished: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM outbox WHERE status <> 'done')")
            .fetch_one(pool)
            .await
            .context("cannot count unfinished rows")?;
        if !unfinished {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
