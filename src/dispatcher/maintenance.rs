//! Maintenance: reaps what never reached a finalize. Somebody must from time to time, and any dispatcher may.

use std::time::Duration;

use rand::RngExt as _;
use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::store::Store;

/// How often spent leases are looked for; jittered up to twice as long.
const INTERVAL: Duration = Duration::from_secs(1);

/// Most rows of one reap.
const REAP_LIMIT: u32 = 100;

/// Reaps until told to stop. Several dispatchers share the work: rows another one holds are skipped.
pub(super) async fn run(store: Store, max_attempts: u32, stop: CancellationToken) {
    loop {
        match store.reap(max_attempts, REAP_LIMIT).await {
            Ok(ids) if ids.is_empty() => {}
            Ok(ids) => {
                metrics::reaped(ids.len());
                tracing::error!(
                    ?ids,
                    "lease expired after the last attempt; these messages are dead and gate their aggregates"
                );
            }
            Err(error) => tracing::warn!(%error, "reap failed; trying again"),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL.mul_f64(rand::rng().random_range(1.0..=2.0))) => {}
        }
    }
}
