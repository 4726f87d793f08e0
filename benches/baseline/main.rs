//! One claim of 100 rows, by criterion: for telling whether a change made claims slower.
//!
//! `make bench` has the percentiles, the loops and the ratios. This one has statistics: save a baseline before a change and
//! compare after it.
//!
//! ```text
//! make up && . localstack/env
//! cargo bench --bench baseline -- --save-baseline before
//! cargo bench --bench baseline -- --baseline before
//! ```

mod supply;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, SamplingMode};
use tokio::runtime::Runtime;

use supply::{Claimer, Supply};
use support::database::Database;
use support::report::Report;
use support::samples::{Samples, ms};
use support::table::Table;

fn main() {
    if !support::is_benching() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    // connections are dropped outside of async code
    let _entered = runtime.enter();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    let mut report = Report::new("baseline");
    let mut group = criterion.benchmark_group("claim of 100");
    // a claim uses its table up: as many of them in every sample, or tables would be copied all day
    group.sampling_mode(SamplingMode::Flat);
    for table in [Table::even(30_000, 1), Table::even(20, 1_000), Table::gated(1_000, 30, 50)] {
        let template = runtime.block_on(Database::load(&table));
        for claimer in [Claimer::Ours, Claimer::Article] {
            let mut supply = Supply::new(&template, claimer);
            let mut a_claim = Samples::default();
            group.bench_function(BenchmarkId::new(claimer.name(), &table.name), |bencher| {
                bencher.iter_custom(|claims| {
                    let took = runtime.block_on(supply.take(claims));
                    a_claim.push(ms(took) / claims as f64);
                    took
                });
            });
            if !a_claim.is_empty() {
                let metric = format!("{}, a claim on average, median of {} samples", claimer.name(), a_claim.len());
                report.row(&table.name, &metric, a_claim.median(), "ms");
            }
        }
    }
    group.finish();
    criterion.final_summary();
    report.write();
}
