//! Signals: the first one asks for a clean stop, the second one ends at once.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// A token that SIGTERM or SIGINT cancels. From here on neither ends the process by itself, which matters most to
/// process 1 of a container: for it, SIGTERM does nothing unless somebody listens.
pub(crate) fn stop_token() -> anyhow::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let name = either(&mut terminate, &mut interrupt).await;
        info!(
            signal = name,
            "stopping: requests in flight finish, the rest is handed back; a second signal ends at once"
        );
        token.cancel();
        let name = either(&mut terminate, &mut interrupt).await;
        warn!(signal = name, "ending at once: leases run out by themselves");
        std::process::exit(1);
    });
    Ok(stop)
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}
