//! Wake-up: when to look for due rows again after a claim found fewer than it asked for.

use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The poll right after something was found.
const FIRST_POLL: Duration = Duration::from_millis(10);

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

    /// There may be something to claim: a lane has ended, so its aggregate has a new head; or a destination is available
    /// again.
    pub(super) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Waits for a wake-up, or for the poll. The poll comes soon after something was found, and later with each idle look
    /// until it is the poll interval: a pause of milliseconds between two messages must not cost a second.
    ///
    /// Polls of many dispatchers started together drift apart: each waits between half the time and the whole.
    pub(super) async fn wait(&self, idle_looks: u32) {
        let wait = self.delay(idle_looks).mul_f64(rand::rng().random_range(0.5..=1.0));
        // Elapsed is the poll
        let _polled = tokio::time::timeout(wait, self.notify.notified()).await;
    }

    /// Waits for a wake-up, but not for long.
    pub(super) async fn pause(&self, most: Duration) {
        let _over = tokio::time::timeout(most, self.notify.notified()).await;
    }

    /// Waits for a wake-up, or until then.
    pub(super) async fn wait_until(&self, until: Instant) {
        let _over = tokio::time::timeout_at(until, self.notify.notified()).await;
    }

    fn delay(&self, idle_looks: u32) -> Duration {
        FIRST_POLL.saturating_mul(2_u32.saturating_pow(idle_looks)).min(self.poll_interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_poll_comes_soon_after_a_find_and_twice_as_late_with_each_idle_look_up_to_the_interval() {
        let wakeup = Wakeup::new(Duration::from_millis(100));
        assert_eq!([0, 1, 2, 3, 4, u32::MAX].map(|looks| wakeup.delay(looks).as_millis()), [10, 20, 40, 80, 100, 100]);
        assert_eq!(Wakeup::new(Duration::from_millis(5)).delay(0), Duration::from_millis(5));
    }
}
