//! Show: one whole row, and what it waits for.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::{Store, StoreError, failed};
use crate::message::{MessageId, Status, UnknownStatus};

/// One row of the outbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Identity and order.
    pub id: MessageId,
    /// Kind of aggregate.
    pub aggregate_type: String,
    /// Order key.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// Where it stands.
    pub status: Status,
    /// Attempts spent.
    pub attempts: i32,
    /// When its producer's transaction began.
    pub created_at: DateTime<Utc>,
    /// Not claimed before.
    pub available_at: DateTime<Utc>,
    /// Who holds the lease.
    pub lease_owner: Option<String>,
    /// When the lease ends.
    pub lease_until: Option<DateTime<Utc>>,
    /// Fencing token.
    pub lease_version: i64,
    /// Why the last attempt did not succeed.
    pub last_error: Option<String>,
    /// When it became done.
    pub done_at: Option<DateTime<Utc>>,
    /// Why a person skipped it.
    pub skip_reason: Option<String>,
    /// The broker's id of the accepted send.
    pub broker_message_id: Option<String>,
    /// The broker's sequence number of the accepted send.
    pub broker_sequence: Option<String>,
    /// The head of its aggregate, if this row waits behind one.
    pub waits_behind: Option<Head>,
    /// Headers as JSON text. Not serialized: it may be personal.
    #[serde(skip)]
    pub headers: String,
    /// Body as JSON text. Not serialized: it may be personal.
    #[serde(skip)]
    pub payload: String,
}

/// The unfinished row that another one waits behind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Head {
    /// The head's id.
    pub id: MessageId,
    /// Where it stands.
    pub status: Status,
    /// Not claimed before.
    pub available_at: DateTime<Utc>,
}

impl Store {
    /// The row with this id, or `None`.
    ///
    /// # Errors
    /// The statement failed, or the row has a status this version does not know.
    pub async fn show(&self, id: MessageId) -> Result<Option<Row>, StoreError> {
        let Some(row) =
            sqlx::query_file!("src/store/sql/show.sql", id).fetch_optional(&self.pool).await.map_err(failed("show"))?
        else {
            return Ok(None);
        };
        let unknown = |error: UnknownStatus| StoreError::Row { step: "show", id, reason: error.to_string() };
        let waits_behind = match (row.head_id, row.head_status, row.head_available_at) {
            (Some(id), Some(status), Some(available_at)) => {
                Some(Head { id, status: status.parse().map_err(unknown)?, available_at })
            }
            _ => None,
        };
        Ok(Some(Row {
            id: row.id,
            aggregate_type: row.aggregate_type,
            aggregate_id: row.aggregate_id,
            event_type: row.event_type,
            status: row.status.parse().map_err(unknown)?,
            attempts: row.attempts,
            created_at: row.created_at,
            available_at: row.available_at,
            lease_owner: row.lease_owner,
            lease_until: row.lease_until,
            lease_version: row.lease_version,
            last_error: row.last_error,
            done_at: row.done_at,
            skip_reason: row.skip_reason,
            broker_message_id: row.broker_message_id,
            broker_sequence: row.broker_sequence,
            waits_behind,
            headers: row.headers,
            payload: row.payload,
        }))
    }
}
