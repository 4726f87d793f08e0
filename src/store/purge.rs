//! Purge: done rows are kept for a while, and not for ever.

use std::time::Duration;

use super::{Store, StoreError, failed};

impl Store {
    /// Deletes up to `limit` rows that have been done for longer than `older_than`; returns how many. Never a row in
    /// another state.
    ///
    /// # Errors
    /// The statement failed; nothing was deleted.
    pub async fn purge(&self, older_than: Duration, limit: u32) -> Result<u64, StoreError> {
        let deleted = sqlx::query_file_scalar!("src/store/sql/purge.sql", older_than.as_secs_f64(), i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("purge"))?;
        Ok(deleted.len() as u64)
    }
}
