//! Gates: the dead heads, and a person's answers to them.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{Store, StoreError, failed};
use crate::message::{MessageId, Status};

/// A dead head: nothing of its aggregate moves until a person decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// The dead row.
    pub id: MessageId,
    /// Kind of aggregate.
    pub aggregate_type: String,
    /// The gated aggregate.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// Attempts spent.
    pub attempts: i32,
    /// Why it died.
    pub last_error: Option<String>,
    /// When its producer's transaction began.
    pub created_at: DateTime<Utc>,
    /// Age in seconds, by the database clock.
    pub age_seconds: f64,
    /// Unfinished rows of the aggregate behind it.
    pub waiting: i64,
}

/// A person's answer was refused; the row is as it was.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// No such row.
    #[error("there is no message {0}: it never existed, or it was purged")]
    Unknown(MessageId),
    /// The row is in another state.
    #[error("message {id} is {status}, not dead: only a dead message can be retried or skipped")]
    NotDead {
        /// The row.
        id: MessageId,
        /// Its state.
        status: Status,
    },
    /// Somebody else decided between our look and our answer.
    #[error("message {0} changed while it was being answered: look again with `outbox show {0}`")]
    Changed(MessageId),
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Up to `limit` gates in id order, beginning after the id `after` (0: from the first).
    ///
    /// # Errors
    /// The statement failed.
    pub async fn gates(&self, after: MessageId, limit: u32) -> Result<Vec<Gate>, StoreError> {
        sqlx::query_file_as!(Gate, "src/store/sql/gates.sql", after, i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(failed("list gates"))
    }

    /// Sends a dead row again, attempts afresh.
    ///
    /// # Errors
    /// The row is unknown or not dead, somebody else answered first, or the statement failed.
    pub async fn retry(&self, id: MessageId) -> Result<(), AnswerError> {
        let lease_version = self.dead_version(id).await?;
        let answered = sqlx::query_file_scalar!("src/store/sql/retry.sql", id, lease_version)
            .fetch_optional(&self.pool)
            .await
            .map_err(failed("retry"))?;
        answered.map(|_| ()).ok_or(AnswerError::Changed(id))
    }

    /// Declares a dead row done without sending it, and keeps the reason.
    ///
    /// # Errors
    /// The row is unknown or not dead, somebody else answered first, or the statement failed.
    #[expect(
        clippy::disallowed_methods,
        reason = "two statements: the second needs a snapshot younger than the lock of the first"
    )]
    pub async fn skip(&self, id: MessageId, reason: &str) -> Result<(), AnswerError> {
        let lease_version = self.dead_version(id).await?;
        // Read committed, whatever the default is: the second statement must see what was parked before the first one
        // had its lock.
        let mut tx = self.pool.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(failed("skip"))?;
        let answered = sqlx::query_file_scalar!("src/store/sql/skip.sql", id, lease_version, reason)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed("skip"))?;
        if answered.is_none() {
            return Err(AnswerError::Changed(id));
        }
        sqlx::query_file_scalar!("src/store/sql/unpark_next.sql", id)
            .fetch_optional(&mut *tx)
            .await
            .map_err(failed("skip, make the next message ready"))?;
        tx.commit().await.map_err(failed("skip"))?;
        Ok(())
    }

    /// The lease version under which the row died: names the very death that is being answered.
    async fn dead_version(&self, id: MessageId) -> Result<i64, AnswerError> {
        match self.show(id).await? {
            None => Err(AnswerError::Unknown(id)),
            Some(row) if row.status == Status::Dead => Ok(row.lease_version),
            Some(row) => Err(AnswerError::NotDead { id, status: row.status }),
        }
    }
}
