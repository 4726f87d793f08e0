//! Claim: takes due messages under a lease, each aggregate's oldest first.

use std::time::Duration;

use super::{Store, StoreError, failed};
use crate::message::Message;

/// What a claim asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Name of this dispatcher, for people.
    pub owner: String,
    /// How long the rows are this dispatcher's.
    pub lease: Duration,
    /// A row whose lease ran out is taken over only while it has spent fewer attempts than this.
    pub max_attempts: u32,
    /// Most rows to take.
    pub batch_size: u32,
    /// Most rows of one aggregate to take.
    pub run_length: u32,
}

impl Store {
    /// Takes up to `batch_size` rows: `lease_version` and `attempts` + 1, in (aggregate id, id) order.
    ///
    /// Only heads of aggregates and the rows right behind them (P2). Waits for no lock. Read the monotonic clock
    /// *before* calling: the lease begins at the database while the reply is still on its way (P6).
    ///
    /// # Errors
    /// The statement failed. The rows may be claimed all the same, if only the reply was lost; their lease runs out.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>, StoreError> {
        let rows = sqlx::query_file!(
            "src/store/sql/claim.sql",
            request.owner,
            request.lease.as_secs_f64(),
            i32::try_from(request.max_attempts).unwrap_or(i32::MAX),
            i64::from(request.batch_size),
            i64::from(request.run_length)
        )
        .fetch_all(&self.pool)
        .await
        .map_err(failed("claim"))?;
        Ok(rows
            .into_iter()
            .map(|row| Message {
                id: row.id,
                lease_version: row.lease_version,
                attempts: row.attempts,
                aggregate_type: row.aggregate_type,
                aggregate_id: row.aggregate_id,
                event_type: row.event_type,
                payload: row.payload,
                headers_json: row.headers,
                age: Duration::try_from_secs_f64(row.age_seconds).unwrap_or(Duration::MAX),
            })
            .collect())
    }
}
