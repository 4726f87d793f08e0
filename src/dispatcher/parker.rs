//! The parker: parks rows that wait, so that no claim looks at them again, and sweeps for heads that were left parked.
//!
//! Both are for speed and for repair only; order does not depend on either. They take a tenth of one connection's time at
//! the most, because rows that wait cost a claim little and once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::wakeup::Wakeup;
use crate::metrics;
use crate::store::Store;

/// Rows of one step of parking, aggregates of one step of a sweep.
const STEP: u32 = 500;

/// A row that waits this long is parked. Most rows behind others go out with them long before.
const PARK_AFTER: Duration = Duration::from_secs(1);

/// The pause after a step is this many times as long as the step.
const PAUSE_SHARE: u32 = 9;

/// Shortest pause between steps.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// Longest pause because of a step that took long: it may have been the database that stood still for some seconds, and
/// a head that a change by hand left parked must not wait nine times as long for the next look.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// Pause between two sweeps; jittered up to twice as long.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Parker {
    store: Store,
    /// A claim saw rows that wait.
    seen: Notify,
    stranded: AtomicU64,
}

impl Parker {
    pub(super) fn new(store: Store) -> Self {
        Self { store, seen: Notify::new(), stranded: AtomicU64::new(0) }
    }

    /// There are rows to park. Calls while it parks are coalesced.
    pub(super) fn wake(&self) {
        self.seen.notify_one();
    }

    /// Stranded heads found so far.
    pub(super) fn stranded(&self) -> u64 {
        self.stranded.load(Ordering::Relaxed)
    }

    /// Parks from the front to the end whenever a claim saw rows that wait, until told to stop.
    pub(super) async fn park(self: Arc<Self>, stop: CancellationToken) {
        let mut from = None;
        loop {
            if from.is_none() {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.seen.notified() => {}
                }
            }
            let started = Instant::now();
            let mut pause = MIN_PAUSE;
            match self.store.park(from, STEP, PARK_AFTER).await {
                Ok(parked) => {
                    metrics::parked(parked.rows);
                    from = Some(parked.reached).filter(|_| !parked.ended);
                    if parked.ended {
                        // what waits now was seen, and is parked when it has waited long enough
                        pause = PARK_AFTER;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "park failed; trying again");
                    pause = PARK_AFTER;
                }
            }
            if stopped(&stop, after_step(pause, started.elapsed())).await {
                return;
            }
        }
    }

    /// Sweeps over every aggregate with parked rows, again and again, until told to stop.
    pub(super) async fn sweep(self: Arc<Self>, wakeup: Arc<Wakeup>, stop: CancellationToken) {
        let mut after = String::new();
        loop {
            let started = Instant::now();
            let mut pause = SWEEP_INTERVAL.mul_f64(rand::rng().random_range(1.0..=2.0));
            match self.store.sweep(&after, STEP).await {
                Ok(swept) => {
                    if !swept.stranded.is_empty() {
                        self.stranded.fetch_add(swept.stranded.len() as u64, Ordering::Relaxed);
                        metrics::stranded(swept.stranded.len());
                        tracing::warn!(
                            ids = ?swept.stranded,
                            "heads were parked with nothing in front of them, as after a change by hand; they are ready now"
                        );
                        wakeup.wake();
                    }
                    if swept.reached.is_some() {
                        pause = MIN_PAUSE;
                    }
                    after = swept.reached.unwrap_or_default();
                }
                Err(error) => tracing::warn!(%error, "sweep failed; trying again"),
            }
            if stopped(&stop, after_step(pause, started.elapsed())).await {
                return;
            }
        }
    }
}

/// The pause after a step that took so long.
fn after_step(pause: Duration, took: Duration) -> Duration {
    pause.max((took * PAUSE_SHARE).min(MAX_PAUSE))
}

/// Waits; `true` if it is time to stop.
async fn stopped(stop: &CancellationToken, pause: Duration) -> bool {
    tokio::select! {
        () = stop.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_followed_by_nine_times_its_time_but_never_by_more_than_five_seconds_for_that() {
        let ms = Duration::from_millis;
        assert_eq!(after_step(MIN_PAUSE, ms(1)), ms(10));
        assert_eq!(after_step(MIN_PAUSE, ms(20)), ms(180));
        assert_eq!(after_step(MIN_PAUSE, ms(4_000)), ms(5_000));
        assert_eq!(after_step(ms(7_000), ms(4_000)), ms(7_000));
    }
}
