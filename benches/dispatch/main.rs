//! Messages a second of the whole loop, with a publisher that accepts at once.
//!
//! Beside it, on copies of the same table: the *floor*, what the two writes of each row cost if nothing had to be found,
//! and the article's loop. Write-ahead log is counted for the whole server: run it on one that has nothing else to do.

mod contestant;
mod floor;
#[path = "../support/mod.rs"]
mod support;

use contestant::{Measured, article, ours};
use support::database::Database;
use support::progress;
use support::quick_or;
use support::report::Report;
use support::table::Table;

use std::collections::BTreeMap;

const DISPATCHERS: [u32; 3] = [1, 2, 4];
const ARTICLE_WORKERS: u32 = 4;

/// Rates by scenario and contestant.
type Rates = BTreeMap<(&'static str, String), f64>;

struct Scenario {
    /// What the ratios call it.
    key: &'static str,
    table: Table,
    /// Also once with everything parked that waits.
    is_settled_too: bool,
    has_article: bool,
}

impl Scenario {
    const fn new(key: &'static str, table: Table) -> Self {
        Self { key, table, is_settled_too: false, has_article: false }
    }
}

fn scenarios() -> Vec<Scenario> {
    let behind_each = quick_or(30, 100);
    vec![
        Scenario { has_article: true, ..Scenario::new("uniform", Table::even(quick_or(20_000, 100_000), 1)) },
        Scenario { has_article: true, ..Scenario::new("20 x 1,000", Table::even(20, 1_000)) },
        Scenario::new("one", Table::even(1, quick_or(3_000, 10_000))),
        Scenario { is_settled_too: true, ..Scenario::new("ungated", Table::gated(1_000, behind_each, 0)) },
        Scenario { is_settled_too: true, ..Scenario::new("gated", Table::gated(1_000, behind_each, 90)) },
        // as many deliverable messages as the gated one has
        Scenario { is_settled_too: true, ..Scenario::new("ungated, few", Table::gated(100, behind_each, 0)) },
        Scenario::new("done", Table::done(quick_or(200_000, 1_000_000), quick_or(10_000, 50_000))),
    ]
}

fn main() {
    support::run(async {
        let mut report = Report::new("dispatch");
        let mut rates = Rates::new();
        for scenario in scenarios() {
            let template = Database::load(&scenario.table).await;
            let _progress = progress::step(&format!("dispatching {}", scenario.table.name));
            measure(&scenario, &template, &mut report, &mut rates).await;
        }
        ask(&mut report, &rates);
        report.write();
    });
}

async fn measure(scenario: &Scenario, template: &Database, report: &mut Report, rates: &mut Rates) {
    let name = &scenario.table.name;
    let floor = floor::measure(template, scenario.table.deliverable).await;
    write(report, name, "floor", &floor);
    rates.insert((scenario.key, "floor".into()), floor.rate());
    let states: &[&str] = if scenario.is_settled_too { &["cold", "settled"] } else { &["cold"] };
    for (state, dispatchers) in states.iter().flat_map(|state| DISPATCHERS.map(|dispatchers| (*state, dispatchers))) {
        let measured = ours(template, scenario.table.deliverable, dispatchers, state == "settled").await;
        let contestant = format!("ours, {state}, {}", number(dispatchers));
        if dispatchers == 1 {
            write(report, name, &contestant, &measured);
        } else {
            report.row(name, &contestant, measured.rate(), "messages/s");
        }
        rates.insert((scenario.key, format!("{state} {dispatchers}")), measured.rate());
    }
    if scenario.has_article {
        let measured = article(template, scenario.table.deliverable, ARTICLE_WORKERS).await;
        report.row(name, "article, 4 workers", measured.rate(), "messages/s");
        report.row(name, "article, 4 workers: rows done", measured.rows as f64, "rows");
        rates.insert((scenario.key, "article".into()), measured.rate());
    }
}

fn number(dispatchers: u32) -> String {
    format!("{dispatchers} dispatcher{}", if dispatchers == 1 { "" } else { "s" })
}

fn write(report: &mut Report, name: &str, contestant: &str, measured: &Measured) {
    let rows = measured.rows as f64;
    report.row(name, contestant, measured.rate(), "messages/s");
    report.row(name, &format!("{contestant}: WAL"), measured.wal_bytes as f64 / rows, "bytes/message");
    report.row(name, &format!("{contestant}: dead rows left"), measured.dead_rows as f64 / rows, "/message");
    report.row(name, &format!("{contestant}: updates"), measured.updates as f64 / rows, "/message");
}

fn ask(report: &mut Report, rates: &Rates) {
    let rate = |key, contestant: &str| rates[&(key, contestant.to_owned())];
    let twenty = "20 aggregates x 1,000";
    for dispatchers in DISPATCHERS {
        let ours = format!("cold {dispatchers}");
        let by = number(dispatchers);
        let floored = rate("uniform", &ours) / rate("uniform", "floor");
        report.at_least(0.7, "uniform", &format!("ours with {by} / floor"), floored, "x");
        let even = rate("uniform", &ours) / rate("20 x 1,000", &ours);
        report.at_most(2.0, twenty, &format!("slower than uniform, {by}"), even, "x");
        let article = rate("20 x 1,000", &ours) / rate("20 x 1,000", "article");
        report.at_least(150.0, twenty, &format!("ours with {by} / article"), article, "x");
    }
    for (key, name) in [("uniform", "uniform"), ("20 x 1,000", twenty)] {
        report.at_least(1.0, name, "4 dispatchers / 1", rate(key, "cold 4") / rate(key, "cold 1"), "x");
    }
    for state in ["cold", "settled"] {
        for dispatchers in DISPATCHERS {
            let ours = format!("{state} {dispatchers}");
            let name = format!("90 % gated, {state}, {}", number(dispatchers));
            for (beside, key) in [("ungated", "ungated"), ("ungated with as many deliverable", "ungated, few")] {
                let ratio = rate("gated", &ours) / rate(key, &ours);
                report.at_least(0.9, &name, &format!("rate / {beside}"), ratio, "x");
            }
        }
    }
}
