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
            if stopped(&stop, pause.max(started.elapsed() * PAUSE_SHARE)).await {
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
            if stopped(&stop, pause.max(started.elapsed() * PAUSE_SHARE)).await {
                return;
            }
        }
    }
}

/// Waits; `true` if it is time to stop.
async fn stopped(stop: &CancellationToken, pause: Duration) -> bool {
    tokio::select! {
        () = stop.cancelled() => true,
        () = tokio::time::sleep(pause) => false,
    }
}
