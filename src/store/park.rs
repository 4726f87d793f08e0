//! Parking: keeps rows that wait out of the index of due rows, so that claims do not look at them again and again.
//!
//! `parked` is a hint. Order rests on the head check of claim.sql alone: a wrong flag can delay a row, never let one
//! overtake.

use std::time::Duration;

use super::{Position, Store, StoreError, failed};
use crate::message::MessageId;

/// What one step of parking did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// Rows parked.
    pub rows: u64,
    /// No row that has been due so long is left behind `reached`.
    pub ended: bool,
    /// Where the next step goes on.
    pub reached: Position,
}

/// What one step of a sweep found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Heads that were parked with nothing in front of them; they are ready now.
    pub stranded: Vec<MessageId>,
    /// Aggregate after which the next step goes on; `None`: no aggregate is left, or another dispatcher sweeps.
    pub reached: Option<String>,
}

impl Store {
    /// Looks at up to `limit` rows that have been due for `due_for`, from a position on (`None`: from the front), and
    /// parks those that wait behind a pending or dead row. Waits for no lock.
    ///
    /// # Errors
    /// The statement failed; nothing was parked.
    pub async fn park(&self, from: Option<Position>, limit: u32, due_for: Duration) -> Result<Parked, StoreError> {
        let from = from.unwrap_or(Position::FRONT);
        let row = sqlx::query_file!(
            "src/store/sql/park.sql",
            from.available_at,
            from.id,
            i64::from(limit),
            due_for.as_secs_f64()
        )
        .fetch_one(&self.pool)
        .await
        .map_err(failed("park"))?;
        Ok(Parked {
            rows: u64::try_from(row.parked).unwrap_or(0),
            ended: row.ended,
            reached: Position { available_at: row.reached_at, id: row.reached_id },
        })
    }

    /// Looks at the oldest parked row of up to `limit` aggregates after the aggregate `after` (`""`: from the first), and
    /// unparks those that nothing is in front of. One sweep at a time in a database: while another one runs, this does
    /// nothing.
    ///
    /// # Errors
    /// The statement failed; nothing was unparked.
    pub async fn sweep(&self, after: &str, limit: u32) -> Result<Swept, StoreError> {
        let row = sqlx::query_file!("src/store/sql/sweep.sql", after, i64::from(limit))
            .fetch_one(&self.pool)
            .await
            .map_err(failed("sweep"))?;
        Ok(Swept { stranded: row.unparked, reached: row.reached.filter(|_| !row.ended) })
    }
}
