//! Finalize and release: how a claimed row leaves `processing`, fenced by its lease version (P4).

use std::time::Duration;

use sqlx::PgConnection;

use super::{Session, Store, StoreError, failed};
use crate::message::{Message, MessageId};
use crate::outcome::Verdict;

/// Longest wait that is written; keeps `now() + delay` inside PostgreSQL's range of dates.
const MAX_DELAY: Duration = Duration::from_hours(87600);

/// A verdict on one claimed row.
#[derive(Clone, Debug, PartialEq)]
pub struct Finalize {
    /// The row.
    pub id: MessageId,
    /// The lease version of the claim it was published under.
    pub lease_version: i64,
    /// What to write.
    pub verdict: Verdict,
    /// The next row of the aggregate was not claimed with it: once this one is `done`, that one becomes ready.
    pub ends_lane: bool,
    /// Write it even if somebody else has the next row of the aggregate locked, which then may have to wait for a
    /// [sweep](Store::sweep). Otherwise the answer is [`Busy`](Finalized::Busy).
    pub insists: bool,
}

impl Finalize {
    /// The verdict on a claimed message that was the last of its lane.
    #[must_use]
    pub const fn new(message: &Message, verdict: Verdict) -> Self {
        Self { id: message.id, lease_version: message.lease_version, verdict, ends_lane: true, insists: false }
    }
}

/// A claimed row to hand back untried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The row.
    pub id: MessageId,
    /// The lease version of its claim.
    pub lease_version: i64,
    /// No earlier claim took it to be sent.
    pub is_first_try: bool,
}

impl Release {
    /// Hands a claimed message back.
    #[must_use]
    pub const fn new(message: &Message) -> Self {
        Self { id: message.id, lease_version: message.lease_version, is_first_try: message.first_tried.is_none() }
    }
}

/// Whether a row took its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finalized {
    /// Written.
    Finalized,
    /// Not written: the lease was taken over, or the row was reaped. The message may have been sent; the new holder
    /// decides.
    LeaseLost,
    /// Not written: somebody else has the row or the next one of its aggregate locked, be it for a moment or in a
    /// forgotten transaction. Ask again.
    Busy,
}

impl Store {
    /// One [`Session::finalize`] on any connection of the pool.
    ///
    /// # Errors
    /// As [`Session::finalize`].
    pub async fn finalize(&self, verdicts: &[Finalize]) -> Result<Vec<Finalized>, StoreError> {
        self.session().finalize(verdicts).await
    }

    /// One [`Session::release`] on any connection of the pool.
    ///
    /// # Errors
    /// As [`Session::release`].
    pub async fn release(&self, untried: &[Release]) -> Result<Vec<Finalized>, StoreError> {
        self.session().release(untried).await
    }
}

impl Session {
    /// Writes verdicts in one transaction; answers one a row, in the order given. Waits for no lock.
    ///
    /// Safe to repeat after an error: a verdict already written answers `LeaseLost` the second time and changes
    /// nothing.
    ///
    /// # Errors
    /// The statement failed; either all of it was written or none.
    pub async fn finalize(&mut self, verdicts: &[Finalize]) -> Result<Vec<Finalized>, StoreError> {
        let mut connection = self.connection("finalize").await?;
        let mut columns = Columns::default();
        for finalize in verdicts {
            columns.push(finalize);
        }
        let written = sqlx::query_file_scalar!(
            "src/store/sql/finalize.sql",
            &columns.ids,
            &columns.lease_versions,
            &columns.verdicts,
            &columns.delays,
            &columns.errors as &[Option<String>],
            &columns.broker_message_ids as &[Option<String>],
            &columns.broker_sequences as &[Option<String>],
            &columns.ends_lane,
            &columns.insists
        )
        .fetch_all(&mut *connection)
        .await
        .map_err(failed("finalize"))?;
        let answers = answers(&mut connection, &columns.ids, &columns.lease_versions, written).await?;
        self.keep(connection);
        Ok(answers)
    }

    /// Hands back rows that were claimed and never tried, attempts refunded; answers one a row, in the order given.
    ///
    /// # Errors
    /// The statement failed; either all rows were handed back or none. Their lease runs out all the same.
    pub async fn release(&mut self, untried: &[Release]) -> Result<Vec<Finalized>, StoreError> {
        let mut connection = self.connection("release").await?;
        let ids: Vec<_> = untried.iter().map(|release| release.id).collect();
        let lease_versions: Vec<_> = untried.iter().map(|release| release.lease_version).collect();
        let is_first: Vec<_> = untried.iter().map(|release| release.is_first_try).collect();
        let written = sqlx::query_file_scalar!("src/store/sql/release.sql", &ids, &lease_versions, &is_first)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed("release"))?;
        let answers = answers(&mut connection, &ids, &lease_versions, written).await?;
        self.keep(connection);
        Ok(answers)
    }
}

/// One answer a row. Why a row was not written is asked only if there is one: the usual batch costs one round trip.
async fn answers(
    connection: &mut PgConnection,
    ids: &[MessageId],
    lease_versions: &[i64],
    mut written: Vec<MessageId>,
) -> Result<Vec<Finalized>, StoreError> {
    if written.len() == ids.len() {
        return Ok(vec![Finalized::Finalized; ids.len()]);
    }
    written.sort_unstable();
    let is_written = |id: &MessageId| written.binary_search(id).is_ok();
    let (others, versions): (Vec<_>, Vec<_>) =
        ids.iter().copied().zip(lease_versions.iter().copied()).filter(|(id, _)| !is_written(id)).unzip();
    let busy = sqlx::query_file_scalar!("src/store/sql/busy.sql", &others, &versions)
        .fetch_all(connection)
        .await
        // not an error of the write: that has happened, and is safe to ask for again
        .map_err(failed("finalize, look for locked rows"))?;
    Ok(ids
        .iter()
        .map(|id| match id {
            id if is_written(id) => Finalized::Finalized,
            id if busy.contains(id) => Finalized::Busy,
            _ => Finalized::LeaseLost,
        })
        .collect())
}

/// The arrays that finalize.sql unnests.
#[derive(Default)]
struct Columns {
    ids: Vec<MessageId>,
    lease_versions: Vec<i64>,
    verdicts: Vec<String>,
    delays: Vec<f64>,
    errors: Vec<Option<String>>,
    broker_message_ids: Vec<Option<String>>,
    broker_sequences: Vec<Option<String>>,
    ends_lane: Vec<bool>,
    insists: Vec<bool>,
}

impl Columns {
    fn push(&mut self, finalize: &Finalize) {
        let (verdict, delay, error, broker) = match &finalize.verdict {
            Verdict::Done { broker_message_id, broker_sequence } => {
                ("done", Duration::ZERO, None, (broker_message_id.clone(), broker_sequence.clone()))
            }
            Verdict::Backoff { delay, error } => ("backoff", *delay, Some(error.clone()), (None, None)),
            Verdict::Defer { delay, error } => ("defer", *delay, Some(error.clone()), (None, None)),
            Verdict::Dead { error } => ("dead", Duration::ZERO, Some(error.clone()), (None, None)),
        };
        self.ids.push(finalize.id);
        self.lease_versions.push(finalize.lease_version);
        self.verdicts.push(verdict.to_owned());
        self.delays.push(delay.min(MAX_DELAY).as_secs_f64());
        self.errors.push(error);
        self.broker_message_ids.push(broker.0);
        self.broker_sequences.push(broker.1);
        self.ends_lane.push(finalize.ends_lane);
        self.insists.push(finalize.insists);
    }
}
