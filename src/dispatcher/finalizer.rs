//! The finalizer: writes verdicts in bulk, and hands back what was not tried.
//!
//! It repeats a write until the database took it: the message was sent, and the row must say so before its lease ends
//! and somebody sends it again. Repeating is safe, since every write is fenced (P4).

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::claimer::DATABASE_BACKOFF;
use super::wakeup::Wakeup;
use crate::message::MessageId;
use crate::metrics;
use crate::store::{Finalize, Finalized, Store, StoreError};

/// Most rows of one write.
const MAX_ROWS: usize = 500;

/// How one claimed row leaves this dispatcher.
#[derive(Debug)]
pub(super) enum Finish {
    /// It was tried.
    Verdict { finalize: Finalize, permit: OwnedSemaphorePermit, ends_lane: bool },
    /// It was not.
    Release { id: MessageId, lease_version: i64, permit: OwnedSemaphorePermit },
}

pub(super) struct Finalizer {
    pub(super) store: Store,
    pub(super) wakeup: Arc<Wakeup>,
}

impl Finalizer {
    /// Runs until the publish stage has ended and everything is written. Returns how many leases were lost.
    pub(super) async fn run(self, mut finishes: mpsc::Receiver<Finish>) -> u64 {
        let mut lease_lost = 0;
        let mut batch = Vec::with_capacity(MAX_ROWS);
        while finishes.recv_many(&mut batch, MAX_ROWS).await > 0 {
            lease_lost += self.write(&mut batch).await;
        }
        lease_lost
    }

    async fn write(&self, batch: &mut Vec<Finish>) -> u64 {
        let (mut verdicts, mut untried, mut permits, mut lane_ended) = (Vec::new(), Vec::new(), Vec::new(), false);
        for finish in batch.drain(..) {
            match finish {
                Finish::Verdict { finalize, permit, ends_lane } => {
                    verdicts.push(finalize);
                    permits.push(permit);
                    lane_ended |= ends_lane;
                }
                Finish::Release { id, lease_version, permit } => {
                    untried.push((id, lease_version));
                    permits.push(permit);
                    lane_ended = true;
                }
            }
        }
        let (finalized, released) = tokio::join!(self.finalize(&verdicts), self.release(&untried));
        metrics::released(untried.len());
        drop(permits);
        if lane_ended {
            self.wakeup.wake();
        }
        finalized + released
    }

    async fn finalize(&self, verdicts: &[Finalize]) -> u64 {
        if verdicts.is_empty() {
            return 0;
        }
        let mut failures = 0;
        loop {
            match self.store.finalize(verdicts).await {
                Ok(answers) => {
                    return count_lost(verdicts.iter().map(|verdict| (verdict.id, verdict.lease_version)), &answers);
                }
                Err(error) if error.is_of_a_row() && verdicts.len() > 1 => return self.finalize_singly(verdicts).await,
                Err(error) if error.is_of_a_row() => {
                    tracing::error!(id = verdicts[0].id, %error, "row refuses its verdict; it is left to its lease");
                    return 0;
                }
                Err(error) => wait_for_database(&error, &mut failures).await,
            }
        }
    }

    /// One row must not keep the others from being finalized.
    async fn finalize_singly(&self, verdicts: &[Finalize]) -> u64 {
        let mut lost = 0;
        for verdict in verdicts {
            lost += Box::pin(self.finalize(std::slice::from_ref(verdict))).await;
        }
        lost
    }

    async fn release(&self, untried: &[(MessageId, i64)]) -> u64 {
        if untried.is_empty() {
            return 0;
        }
        let mut failures = 0;
        loop {
            match self.store.release(untried).await {
                Ok(answers) => return count_lost(untried.iter().copied(), &answers),
                Err(error) if error.is_of_a_row() => {
                    tracing::error!(%error, rows = untried.len(), "rows cannot be handed back; they are left to their lease");
                    return 0;
                }
                Err(error) => wait_for_database(&error, &mut failures).await,
            }
        }
    }
}

async fn wait_for_database(error: &StoreError, failures: &mut u32) {
    *failures += 1;
    tracing::warn!(%error, failures, "write failed; trying again");
    tokio::time::sleep(DATABASE_BACKOFF.full_jitter(*failures)).await;
}

fn count_lost(rows: impl Iterator<Item = (MessageId, i64)>, answers: &[Finalized]) -> u64 {
    let mut lost = 0;
    for ((id, lease_version), answer) in rows.zip(answers) {
        if *answer == Finalized::LeaseLost {
            lost += 1;
            metrics::lease_lost();
            tracing::warn!(id, lease_version, "lost lease; the row's new holder decides");
        }
    }
    lost
}
