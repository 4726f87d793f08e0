//! Wake-up: when to look for due rows again after a claim found fewer than it asked for.

use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::Notify;

/// Wakes the claimer, at the latest after a jittered poll interval. Wake-ups are coalesced, and one that comes before
/// the claimer sleeps is not lost.
#[derive(Debug)]
pub(super) struct Wakeup {
    notify: Notify,
    poll_interval: Duration,
}

impl Wakeup {
    pub(super) fn new(poll_interval: Duration) -> Self {
        Self { notify: Notify::new(), poll_interval }
    }

    /// There may be something to claim: a lane has ended, so its aggregate has a new head.
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Waits for a wake-up, or for the poll. Polls of many dispatchers started together drift apart: each waits
    /// between half the interval and the whole.
    pub(super) async fn wait(&self) {
        let wait = self.poll_interval.mul_f64(rand::rng().random_range(0.5..=1.0));
        // Elapsed is the poll
        let _polled = tokio::time::timeout(wait, self.notify.notified()).await;
    }
}
