//! Reap: a message that never reaches a finalize must not be claimed for ever.

use super::{Store, StoreError, failed};
use crate::message::MessageId;

impl Store {
    /// Declares dead up to `limit` rows whose lease ran out after their last attempt; returns their ids.
    ///
    /// The last attempt is the exception to "an expired lease that nobody took over still finalizes": its holder may
    /// find the row dead although the message was sent. Keep the publish timeout well under the lease.
    ///
    /// # Errors
    /// The statement failed; nothing changed.
    pub async fn reap(&self, max_attempts: u32, limit: u32) -> Result<Vec<MessageId>, StoreError> {
        sqlx::query_file_scalar!(
            "src/store/sql/reap.sql",
            i32::try_from(max_attempts).unwrap_or(i32::MAX),
            i64::from(limit)
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("reap"))
    }
}
