//! Source: the name in front of every deduplication id.

use super::{Store, StoreError, failed};

impl Store {
    /// A name of 12 characters for this very outbox, made from the cluster, the database and the table.
    ///
    /// Two outboxes may feed one queue, and both have a row 1: without a name in front, SQS would take the second for
    /// a copy of the first and drop it. The name survives restarts and failovers; a dump restored elsewhere gets
    /// another one.
    ///
    /// # Errors
    /// The statement failed.
    pub async fn source(&self) -> Result<String, StoreError> {
        sqlx::query_file_scalar!("src/store/sql/source.sql")
            .fetch_one(&self.pool)
            .await
            .map_err(failed("read the source name"))
    }
}
