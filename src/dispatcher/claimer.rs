//! The claimer: turns due rows into lanes, as many as this dispatcher may hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lane::{Held, Lane};
use super::wakeup::Wakeup;
use crate::backoff::Backoff;
use crate::config::{DispatcherConfig, FINALIZE_MARGIN};
use crate::message::Message;
use crate::metrics;
use crate::store::{ClaimRequest, Store};

/// Waits between claims while the database does not answer.
pub(super) const DATABASE_BACKOFF: Backoff = Backoff { base: Duration::from_millis(50), cap: Duration::from_secs(5) };

/// Claims until told to stop, or, when draining, until nothing due is left.
pub(super) struct Claimer {
    pub(super) store: Store,
    pub(super) config: DispatcherConfig,
    pub(super) permits: Arc<Semaphore>,
    /// How many permits there are when nothing is held.
    pub(super) capacity: u32,
    pub(super) wakeup: Arc<Wakeup>,
    pub(super) lanes: mpsc::Sender<Lane>,
    pub(super) drain: bool,
}

impl Claimer {
    /// Returns how many rows were claimed. Dropping `lanes` tells the next stage that no more will come.
    pub(super) async fn run(self, stop: CancellationToken) -> u64 {
        let mut claimed = 0;
        let mut failures = 0;
        while let Some(permits) = self.permits(&stop).await {
            let asked = permits.len();
            let nothing_held = self.permits.available_permits() + asked == self.capacity as usize;
            // Before the claim is sent: the lease begins at the database while the reply is still on its way (P6).
            let sent = Instant::now();
            // Not raced against `stop`: a claim dropped half-way would leave rows leased and forgotten.
            match self.store.claim(&self.request(asked)).await {
                Ok(messages) => {
                    failures = 0;
                    let found = messages.len();
                    claimed += found as u64;
                    metrics::claimed(found);
                    if self.drain && found == 0 && nothing_held {
                        break;
                    }
                    for lane in Lane::split(hold(messages, permits), self.start_by(sent)) {
                        if self.lanes.send(lane).await.is_err() {
                            return claimed;
                        }
                    }
                    if found < asked {
                        self.wait(&stop, self.wakeup.wait()).await;
                    }
                }
                Err(error) => {
                    drop(permits);
                    failures += 1;
                    tracing::warn!(%error, failures, "claim failed; trying again");
                    self.wait(&stop, tokio::time::sleep(DATABASE_BACKOFF.full_jitter(failures))).await;
                }
            }
        }
        claimed
    }

    /// At least one permit and at most a batch of them; `None` when it is time to stop.
    async fn permits(&self, stop: &CancellationToken) -> Option<Vec<OwnedSemaphorePermit>> {
        let first = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            // the semaphore is never closed
            first = Arc::clone(&self.permits).acquire_owned() => first.ok()?,
        };
        let mut permits = vec![first];
        while permits.len() < self.config.batch_size as usize {
            let Ok(another) = Arc::clone(&self.permits).try_acquire_owned() else { break };
            permits.push(another);
        }
        Some(permits)
    }

    fn request(&self, batch_size: usize) -> ClaimRequest {
        ClaimRequest {
            owner: self.config.owner.clone(),
            lease: self.config.lease,
            max_attempts: self.config.patience.max_attempts,
            batch_size: batch_size as u32,
            run_length: self.config.run_length,
        }
    }

    fn start_by(&self, sent: Instant) -> Instant {
        sent + self.config.lease.saturating_sub(self.config.publish_timeout + FINALIZE_MARGIN)
    }

    async fn wait(&self, stop: &CancellationToken, until: impl Future<Output = ()>) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = until => {}
        }
    }
}

/// One permit a message; those left over are free again.
fn hold(messages: Vec<Message>, permits: Vec<OwnedSemaphorePermit>) -> Vec<Held> {
    messages.into_iter().zip(permits).map(|(message, permit)| Held { message, permit }).collect()
}
