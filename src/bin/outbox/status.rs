//! `outbox status`

use ordered_outbox::store::Stats;

use crate::database::DatabaseArgs;
use crate::output::{self, Output};
use crate::values::age;

/// Prints the state of the outbox.
pub(crate) async fn execute(database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let stats = database.open().await?.stats().await?;
    output.write(&stats, || text(&stats))
}

fn text(stats: &Stats) -> String {
    let depth = stats.depth.iter().map(|depth| [depth.status.clone(), depth.count.to_string()]);
    let waiting = [
        ("oldest undelivered", stats.oldest_undelivered_seconds.map_or_else(|| "none".to_owned(), age)),
        ("not yet due (backoff, deferral)", stats.not_yet_due.to_string()),
        ("waiting behind a head not yet due", stats.waiting_behind_not_yet_due.to_string()),
        ("gated aggregates (see `outbox gates`)", stats.gated_aggregates.to_string()),
        ("waiting behind gates", stats.waiting_behind_gates.to_string()),
        ("expired leases", stats.expired_leases.to_string()),
    ];
    let mut parts = vec![output::table(["status", "messages"], depth), output::fields(waiting)];
    if !stats.attempts.is_empty() {
        let attempts = stats.attempts.iter().map(|spent| [spent.attempts.to_string(), spent.count.to_string()]);
        parts.push(output::table(["attempts spent", "undelivered messages"], attempts));
    }
    parts.join("\n\n")
}
