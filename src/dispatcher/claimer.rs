//! The claimer: turns due rows into lanes, as many as this dispatcher may hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::breakers::{Admission, Breakers};
use super::capacity::{Capacity, Room};
use super::cursor::Cursor;
use super::lane::Lane;
use super::parker::Parker;
use super::wakeup::Wakeup;
use crate::backoff::Backoff;
use crate::config::DispatcherConfig;
use crate::metrics;
use crate::store::{Claim, ClaimRequest, Look, Session};

/// Waits between claims while the database does not answer.
pub(super) const DATABASE_BACKOFF: Backoff = Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(5) };

/// After so many looks that found nothing the polls are further apart, and the connection goes back to the pool in between.
const REST_AFTER_LOOKS: u32 = 6;

/// Longest pause after a claim that only saw rows that wait. It is as long as the claim, which leaves half of the time to those
/// who finish what is in front of them.
const MAX_PAUSE: Duration = Duration::from_millis(10);

/// Rows that are claimed to find one to probe a destination with: enough for a choice.
const PROBE_ROWS: u32 = 10;

/// Claims until told to stop, or, when draining, until nothing due is left.
pub(super) struct Claimer {
    pub(super) session: Session,
    pub(super) config: DispatcherConfig,
    pub(super) capacity: Capacity,
    pub(super) wakeup: Arc<Wakeup>,
    pub(super) parker: Arc<Parker>,
    pub(super) breakers: Arc<Breakers>,
    pub(super) lanes: mpsc::Sender<Vec<Lane>>,
    pub(super) drain: bool,
}

impl Claimer {
    /// Returns how many rows were claimed. Dropping `lanes` tells the next stage that no more will come.
    pub(super) async fn run(mut self, stop: CancellationToken) -> u64 {
        let mut claimed = 0;
        let mut failures = 0;
        // looks at the end of the due rows since one that found something
        let mut idle_looks = 0;
        // nothing was found or held since a claim at the front
        let mut is_barren = false;
        let mut cursor = Cursor::new(self.config.batch_size, Instant::now());
        let mut excepted = Vec::new();
        while let Some(room) = self.room(&stop).await {
            let Admission { except, probes } = match self.breakers.admission(Instant::now()) {
                Ok(admission) => admission,
                Err(until) => {
                    drop(room);
                    self.session.rest();
                    self.wait(&stop, self.wakeup.wait_until(until)).await;
                    continue;
                }
            };
            if probes || excepted.iter().any(|aggregate_type| !except.contains(aggregate_type)) {
                // what was passed over is behind the position
                cursor.rewind();
            }
            let nothing_held = self.capacity.is_all_in(&room);
            // Before the claim is sent: the lease begins at the database while the reply is still on its way (P6).
            let sent = Instant::now();
            let look = cursor.next(sent);
            // Not raced against `stop`: a claim dropped half-way would leave rows leased and forgotten.
            let request = self.request(&room, look, &except, probes);
            match self.session.claim(&request).await {
                Ok(Claim { messages, window }) => {
                    failures = 0;
                    let found = messages.len();
                    let is_filled = found == request.batch_size as usize;
                    claimed += found as u64;
                    metrics::claimed(found);
                    let at_end = cursor.saw(&window, is_filled, sent.elapsed(), Instant::now());
                    if window.waiting > window.excepted {
                        self.parker.wake();
                    }
                    self.breakers.claimed(&messages, sent + self.config.lease);
                    // all at once, so that requests fill up instead of leaving with the first of them
                    let lanes = Lane::split(room.hold(messages), self.start_by(sent));
                    if found > 0 && self.lanes.send(lanes).await.is_err() {
                        return claimed;
                    }
                    let is_whole = except.is_empty();
                    is_barren = found == 0 && nothing_held && is_whole && (is_barren || look.from.is_none());
                    idle_looks = if found == 0 { idle_looks + u32::from(at_end) } else { 0 };
                    if self.drain && at_end && is_barren {
                        break;
                    }
                    if self.drain && at_end && found == 0 && nothing_held && is_whole {
                        // only looks from the front on can tell
                        cursor.rewind();
                    } else if at_end {
                        if idle_looks >= REST_AFTER_LOOKS {
                            self.session.rest();
                        }
                        self.wait(&stop, self.wakeup.wait(idle_looks)).await;
                    } else if found == 0 && !cursor.steps_aside() {
                        self.wait(&stop, self.wakeup.pause(sent.elapsed().min(MAX_PAUSE))).await;
                    }
                }
                Err(error) => {
                    drop(room);
                    failures += 1;
                    tracing::warn!(%error, failures, "claim failed; trying again");
                    self.wait(&stop, tokio::time::sleep(DATABASE_BACKOFF.full_jitter(failures))).await;
                }
            }
            excepted = except;
        }
        claimed
    }

    /// Room for at least one row; `None` when it is time to stop.
    async fn room(&self, stop: &CancellationToken) -> Option<Room> {
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            room = self.capacity.room() => Some(room),
        }
    }

    fn request(&self, room: &Room, look: Look, except: &[String], probes: bool) -> ClaimRequest {
        ClaimRequest {
            owner: self.config.owner.clone(),
            lease: self.config.lease,
            max_attempts: self.config.patience.max_attempts,
            batch_size: if probes { room.rows().min(PROBE_ROWS) } else { room.rows() },
            batch_bytes: room.bytes(),
            run_length: if probes { 1 } else { self.config.run_length },
            fill_up_to: room.fill_up_to(),
            look,
            except: except.to_vec(),
        }
    }

    fn start_by(&self, sent: Instant) -> Instant {
        sent + self.config.start_within()
    }

    /// Ends early when more may be claimed again.
    async fn wait(&self, stop: &CancellationToken, until: impl Future<Output = ()>) {
        let admits_more_at = self.breakers.admits_more_at();
        tokio::select! {
            () = stop.cancelled() => {}
            () = until => {}
            () = tokio::time::sleep_until(admits_more_at.unwrap_or_else(Instant::now)), if admits_more_at.is_some() => {}
        }
    }
}
