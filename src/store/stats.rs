//! Stats: is order flowing, and if not, what keeps it? For people; reads the whole table.

use serde::Serialize;
use sqlx::Executor as _;

use super::{Store, StoreError, failed};

/// How many rows have a status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatusCount {
    /// `pending`, `processing`, `done` or `dead`.
    pub status: String,
    /// Rows.
    pub count: i64,
}

/// How many undelivered rows have spent this many attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AttemptsCount {
    /// Attempts spent.
    pub attempts: i32,
    /// Rows.
    pub count: i64,
}

/// The state of the outbox.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// Rows by status, in the order of the state machine; all four, zero included.
    pub depth: Vec<StatusCount>,
    /// Age of the oldest `pending` or `processing` row in seconds; `None` if there is none. The number to watch: it
    /// rises without end when delivery stops.
    pub oldest_undelivered_seconds: Option<f64>,
    /// `processing` rows whose lease ran out and that nobody took over yet.
    pub expired_leases: i64,
    /// `pending` rows that are not due yet: backoff, deferral.
    pub not_yet_due: i64,
    /// Aggregates with a dead row.
    pub gated_aggregates: i64,
    /// `pending` rows behind a dead row of their aggregate.
    pub waiting_behind_gates: i64,
    /// `pending` rows behind a row of their aggregate that is not due yet.
    pub waiting_behind_not_yet_due: i64,
    /// Attempts of undelivered rows, ascending.
    pub attempts: Vec<AttemptsCount>,
}

impl Store {
    /// Reads the state of the outbox. Costs a scan of the table.
    ///
    /// # Errors
    /// A statement failed.
    #[expect(clippy::disallowed_methods, reason = "several statements on one snapshot; nothing is written")]
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        // One snapshot, so that the numbers agree; and plans for what these statements do, which is to read the table.
        let mut tx = self
            .pool
            .begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            .await
            .map_err(failed("begin to read the state"))?;
        tx.execute("SET LOCAL enable_seqscan = on; SET LOCAL plan_cache_mode = force_custom_plan")
            .await
            .map_err(failed("begin to read the state"))?;
        let depth = sqlx::query_file_as!(StatusCount, "src/store/sql/stats_depth.sql")
            .fetch_all(&mut *tx)
            .await
            .map_err(failed("count rows by status"))?;
        let waiting = sqlx::query_file!("src/store/sql/stats_waiting.sql")
            .fetch_one(&mut *tx)
            .await
            .map_err(failed("read what waits"))?;
        let attempts = sqlx::query_file_as!(AttemptsCount, "src/store/sql/stats_attempts.sql")
            .fetch_all(&mut *tx)
            .await
            .map_err(failed("count rows by attempts"))?;
        Ok(Stats {
            depth,
            oldest_undelivered_seconds: waiting.oldest_undelivered_seconds,
            expired_leases: waiting.expired_leases,
            not_yet_due: waiting.not_yet_due,
            gated_aggregates: waiting.gated_aggregates,
            waiting_behind_gates: waiting.waiting_behind_gates,
            waiting_behind_not_yet_due: waiting.waiting_behind_not_yet_due,
            attempts,
        })
    }
}
