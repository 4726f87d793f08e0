//! The finalizer: writes verdicts in bulk, and hands back what was not tried.
//!
//! It repeats a write until the database took it: the message was sent, and the row must say so before its lease ends
//! and somebody sends it again. Repeating is safe, since every write is fenced (P4).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::capacity::Permit;
use super::claimer::DATABASE_BACKOFF;
use super::wakeup::Wakeup;
use crate::message::{Message, MessageId};
use crate::metrics;
use crate::store::{Finalize, Finalized, Release, Session, StoreError};

/// Most rows of one write.
const MAX_ROWS: usize = 500;

/// How long a row whose lane goes on waits for others to be written with, unless a batch of them has come together. One that
/// ends its lane does not wait: the next row of its aggregate does. Short, since a row that waits is held all the while.
const LINGER: Duration = Duration::from_millis(5);

/// Wait before a row that somebody else has locked is asked for again. A parker holds its locks for about as long.
const BUSY_WAIT: Duration = Duration::from_millis(10);

/// The same, for a row that has been locked for longer than a parker would: somebody's open transaction.
const LONG_BUSY_WAIT: Duration = Duration::from_millis(100);

/// Without anything to write for so long, the connection goes back to the pool.
const REST_AFTER: Duration = Duration::from_secs(1);

/// A row whose neighbour has been locked for so long is finalized all the same.
const INSIST_AFTER: Duration = Duration::from_secs(1);

/// How one claimed row leaves this dispatcher.
#[derive(Debug)]
pub(super) struct Finish {
    how: How,
    #[expect(dead_code, reason = "given back when this is dropped")]
    permit: Permit,
    busy_since: Option<Instant>,
}

#[derive(Debug)]
enum How {
    /// It was tried.
    Verdict(Finalize),
    /// It was not.
    Release(Release),
}

impl Finish {
    pub(super) const fn verdict(finalize: Finalize, permit: Permit) -> Self {
        Self { how: How::Verdict(finalize), permit, busy_since: None }
    }

    pub(super) const fn release(message: &Message, permit: Permit) -> Self {
        Self { how: How::Release(Release::new(message)), permit, busy_since: None }
    }

    const fn ends_lane(&self) -> bool {
        matches!(self.how, How::Release(_) | How::Verdict(Finalize { ends_lane: true, .. }))
    }

    const fn lease(&self) -> (MessageId, i64) {
        match &self.how {
            How::Verdict(finalize) => (finalize.id, finalize.lease_version),
            How::Release(release) => (release.id, release.lease_version),
        }
    }

    /// It was busy, again or for the first time.
    fn keep(mut self, now: Instant) -> Self {
        let since = *self.busy_since.get_or_insert(now);
        if let How::Verdict(finalize) = &mut self.how {
            finalize.insists = now - since >= INSIST_AFTER;
        }
        self
    }

    fn is_busy_for_long(&self, now: Instant) -> bool {
        self.busy_since.is_some_and(|since| now - since >= INSIST_AFTER)
    }
}

pub(super) struct Finalizer {
    pub(super) session: Session,
    pub(super) wakeup: Arc<Wakeup>,
    pub(super) batch_size: u32,
}

impl Finalizer {
    /// Runs until the publish stage has ended and everything is written. Returns how many leases were lost.
    pub(super) async fn run(mut self, mut finishes: mpsc::Receiver<Finish>) -> u64 {
        let enough = self.batch_size as usize;
        let mut lease_lost = 0;
        let mut more = true;
        let mut batch = Vec::with_capacity(MAX_ROWS);
        let mut write_by = Instant::now();
        // locked by somebody else: each goes again with whatever comes next, so that it holds up no other
        let mut busy: Vec<Finish> = Vec::new();
        while more || !busy.is_empty() || !batch.is_empty() {
            let room = MAX_ROWS.saturating_sub(batch.len()).max(1);
            tokio::select! {
                received = finishes.recv_many(&mut batch, room), if more => {
                    more = received > 0;
                    if received == batch.len() {
                        write_by = Instant::now() + LINGER;
                    }
                }
                () = tokio::time::sleep_until(write_by), if !batch.is_empty() => {}
                () = tokio::time::sleep(busy_wait(&busy)), if !busy.is_empty() => {}
                () = tokio::time::sleep(REST_AFTER), if batch.is_empty() && busy.is_empty() && !self.session.is_resting() => {
                    self.session.rest();
                    continue;
                }
            }
            let is_urgent = !more || batch.len() >= enough || batch.iter().any(Finish::ends_lane);
            if is_urgent || !busy.is_empty() || Instant::now() >= write_by {
                batch.append(&mut busy);
                lease_lost += self.write(&mut batch, &mut busy).await;
            }
        }
        lease_lost
    }

    async fn write(&mut self, batch: &mut Vec<Finish>, busy: &mut Vec<Finish>) -> u64 {
        let (tried, untried): (Vec<_>, Vec<_>) =
            batch.drain(..).partition(|finish| matches!(finish.how, How::Verdict(_)));
        let verdicts: Vec<_> = tried
            .iter()
            .filter_map(|finish| match &finish.how {
                How::Verdict(finalize) => Some(finalize.clone()),
                How::Release(_) => None,
            })
            .collect();
        let held: Vec<_> = untried
            .iter()
            .filter_map(|finish| match &finish.how {
                How::Release(release) => Some(*release),
                How::Verdict(_) => None,
            })
            .collect();
        let finalized = self.finalize(&verdicts).await;
        let released = self.release(&held).await;
        metrics::released(released.iter().filter(|answer| **answer == Some(Finalized::Finalized)).count());
        let (mut lost, mut lane_ended) = (0, false);
        // each finish that is not kept gives its permit back here, before the claimer is woken
        for (finish, answer) in tried.into_iter().zip(finalized).chain(untried.into_iter().zip(released)) {
            if answer == Some(Finalized::Busy) {
                busy.push(finish.keep(Instant::now()));
                continue;
            }
            if answer == Some(Finalized::LeaseLost) {
                let (id, lease_version) = finish.lease();
                lost += 1;
                metrics::lease_lost();
                tracing::warn!(id, lease_version, "lost lease; the row's new holder decides");
            }
            lane_ended |= finish.ends_lane();
        }
        if lane_ended {
            self.wakeup.wake();
        }
        lost
    }

    /// One answer a verdict; `None`: given up, the row refuses it.
    async fn finalize(&mut self, verdicts: &[Finalize]) -> Vec<Option<Finalized>> {
        if verdicts.is_empty() {
            return Vec::new();
        }
        let mut failures = 0;
        loop {
            match self.session.finalize(verdicts).await {
                Ok(answers) => return answers.into_iter().map(Some).collect(),
                Err(error) if error.is_of_a_row() && verdicts.len() > 1 => return self.finalize_singly(verdicts).await,
                Err(error) if error.is_of_a_row() => {
                    tracing::error!(id = verdicts[0].id, %error, "row refuses its verdict; it is left to its lease");
                    return vec![None];
                }
                Err(error) => wait_for_database(&error, &mut failures).await,
            }
        }
    }

    /// One row must not keep the others from being finalized.
    async fn finalize_singly(&mut self, verdicts: &[Finalize]) -> Vec<Option<Finalized>> {
        let mut answers = Vec::with_capacity(verdicts.len());
        for verdict in verdicts {
            answers.extend(Box::pin(self.finalize(std::slice::from_ref(verdict))).await);
        }
        answers
    }

    /// One answer a row; `None`: given up, the row refuses it.
    async fn release(&mut self, untried: &[Release]) -> Vec<Option<Finalized>> {
        if untried.is_empty() {
            return Vec::new();
        }
        let mut failures = 0;
        loop {
            match self.session.release(untried).await {
                Ok(answers) => return answers.into_iter().map(Some).collect(),
                Err(error) if error.is_of_a_row() => {
                    tracing::error!(%error, rows = untried.len(), "rows cannot be handed back; they are left to their lease");
                    return vec![None; untried.len()];
                }
                Err(error) => wait_for_database(&error, &mut failures).await,
            }
        }
    }
}

/// How long to wait until asking for busy rows again.
fn busy_wait(busy: &[Finish]) -> Duration {
    let now = Instant::now();
    if busy.iter().all(|finish| finish.is_busy_for_long(now)) { LONG_BUSY_WAIT } else { BUSY_WAIT }
}

async fn wait_for_database(error: &StoreError, failures: &mut u32) {
    *failures += 1;
    tracing::warn!(%error, failures, "write failed; trying again");
    tokio::time::sleep(DATABASE_BACKOFF.full_jitter(*failures)).await;
}

#[cfg(test)]
mod tests {
    use super::super::lane::tests::held;
    use super::*;
    use crate::outcome::Verdict;

    fn insists(finish: &Finish) -> bool {
        matches!(&finish.how, How::Verdict(finalize) if finalize.insists)
    }

    #[test]
    fn a_verdict_insists_once_it_has_been_busy_for_a_second_since_the_first_time() {
        let done = Verdict::Done { broker_message_id: None, broker_sequence: None };
        let finish = Finish::verdict(Finalize::new(&held("a", 1).message, done), Permit::none());
        let now = Instant::now();
        assert!(!insists(&finish) && !finish.is_busy_for_long(now + INSIST_AFTER));
        let mut finish = finish.keep(now);
        for (after, expected) in [
            (Duration::ZERO, false),
            (INSIST_AFTER / 2, false),
            (INSIST_AFTER.mul_f64(0.999), false),
            (INSIST_AFTER, true),
            (2 * INSIST_AFTER, true),
        ] {
            finish = finish.keep(now + after);
            assert_eq!((insists(&finish), finish.is_busy_for_long(now + after)), (expected, expected), "{after:?}");
        }
    }

    #[test]
    fn a_row_to_hand_back_is_asked_for_less_often_and_never_insists() {
        let now = Instant::now();
        let finish = Finish::release(&held("a", 1).message, Permit::none()).keep(now).keep(now + INSIST_AFTER);
        assert!(!insists(&finish) && finish.is_busy_for_long(now + INSIST_AFTER));
    }
}
