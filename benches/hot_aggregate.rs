//! One aggregate and a publisher that takes 10 ms: strictly one message a round trip, or up to ten with group batching.

#[path = "support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use ordered_outbox::{Dispatcher, DispatcherConfig};

use support::accepting::{Accepting, Countdown};
use support::database::Database;
use support::quick_or;
use support::report::Report;
use support::table::Table;

const LATENCY: Duration = Duration::from_millis(10);

fn main() {
    support::run(async {
        let mut report = Report::new("hot_aggregate");
        let strict = DispatcherConfig::default();
        let batching = DispatcherConfig { group_batching: 10, ..strict.clone() };
        let long = DispatcherConfig { run_length: 100, ..batching.clone() };
        for (config, rows, limit) in [
            (strict, quick_or(500, 2_000), 0.95),
            (batching, quick_or(3_000, 15_000), 8.0),
            (long, quick_or(3_000, 15_000), 8.0),
        ] {
            measure(&mut report, config, rows, limit).await;
        }
        report.write();
    });
}

async fn measure(report: &mut Report, config: DispatcherConfig, rows: u64, limit: f64) {
    let table = Table::even(1, rows);
    let name = format!("{}, group batching {}, run length {}", table.name, config.group_batching, config.run_length);
    let database = Database::load(&table).await;
    let store = database.store(4).await;
    let countdown = Countdown::from(rows);
    let publisher = Accepting { latency: LATENCY, countdown: countdown.clone() };
    let dispatcher = Dispatcher::new(store.clone(), publisher, config).unwrap();
    let start = Instant::now();
    let summary = dispatcher.run(countdown.stop).await.unwrap();
    let rate = rows as f64 / start.elapsed().as_secs_f64();
    assert_eq!(summary.published, rows);
    store.pool().close().await;
    report.row(&name, "rate", rate, "messages/s");
    report.at_least(limit, &name, "rate x latency of 10 ms", rate * LATENCY.as_secs_f64(), "");
}
