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
use support::samples::Samples;
use support::table::Table;

use std::collections::BTreeMap;

const DISPATCHERS: [u32; 3] = [1, 2, 4];
const ARTICLE_WORKERS: u32 = 4;

/// Rates by scenario and contestant, one a round.
type Rates = BTreeMap<(&'static str, String), Vec<f64>>;

struct Scenario {
    /// What the ratios call it.
    key: &'static str,
    table: Table,
    /// Also once with everything parked that waits.
    is_settled_too: bool,
    has_article: bool,
}

impl Scenario {
    fn new(key: &'static str, table: Table) -> Self {
        Self { key, table, is_settled_too: false, has_article: false }
    }
}

/// Scenarios that are compared with each other run in turn, as often as it says: what else the machine does changes by the
/// minute. A ratio is the median of those of the rounds.
struct Group {
    rounds: usize,
    scenarios: Vec<Scenario>,
}

fn groups() -> Vec<Group> {
    let behind_each = quick_or(30, 100);
    vec![
        Group {
            rounds: 3,
            scenarios: vec![
                Scenario { has_article: true, ..Scenario::new("uniform", Table::even(quick_or(50_000, 100_000), 1)) },
                Scenario { has_article: true, ..Scenario::new("20 x 1,000", Table::even(20, 1_000)) },
            ],
        },
        Group {
            rounds: quick_or(1, 3),
            scenarios: vec![
                Scenario { is_settled_too: true, ..Scenario::new("ungated", Table::gated(1_000, behind_each, 0)) },
                Scenario { is_settled_too: true, ..Scenario::new("gated", Table::gated(1_000, behind_each, 90)) },
                // as many deliverable messages as the gated one has
                Scenario { is_settled_too: true, ..Scenario::new("ungated, few", Table::gated(100, behind_each, 0)) },
            ],
        },
        Group {
            rounds: 1,
            scenarios: vec![
                Scenario::new("one", Table::even(1, quick_or(3_000, 10_000))),
                Scenario::new("done", Table::done(quick_or(200_000, 1_000_000), quick_or(10_000, 50_000))),
            ],
        },
    ]
}

fn main() {
    support::run(async {
        let mut report = Report::new("dispatch");
        let mut rates = Rates::new();
        for Group { rounds, scenarios } in groups() {
            let mut templates = Vec::new();
            for scenario in &scenarios {
                templates.push(Database::load(&scenario.table).await);
            }
            for round in 0..rounds {
                for (scenario, template) in scenarios.iter().zip(&templates) {
                    let _progress =
                        progress::step(&format!("dispatching {}, round {}", scenario.table.name, round + 1));
                    measure(scenario, template, round == 0, &mut report, &mut rates).await;
                }
            }
            for scenario in &scenarios {
                write_rates(&mut report, scenario, &rates);
            }
        }
        ask(&mut report, &rates);
        report.write();
    });
}

/// One round of a scenario.
async fn measure(scenario: &Scenario, template: &Database, is_first: bool, report: &mut Report, rates: &mut Rates) {
    let (name, deliverable) = (&scenario.table.name, scenario.table.deliverable);
    let states: &[&str] = if scenario.is_settled_too { &["cold", "settled"] } else { &["cold"] };
    let mut note = |contestant: String, measured: &Measured| {
        rates.entry((scenario.key, contestant)).or_default().push(measured.rate());
    };
    let floor = floor::measure(template, deliverable).await;
    note("floor".into(), &floor);
    if is_first {
        write(report, name, "floor", &floor);
    }
    for (state, dispatchers) in states.iter().flat_map(|state| DISPATCHERS.map(|dispatchers| (*state, dispatchers))) {
        let measured = ours(template, deliverable, dispatchers, state == "settled").await;
        note(format!("{state} {dispatchers}"), &measured);
        if is_first && dispatchers == 1 {
            write(report, name, &format!("ours, {state}, 1 dispatcher"), &measured);
        }
    }
    if scenario.has_article {
        note("article".into(), &article(template, deliverable, ARTICLE_WORKERS).await);
    }
}

fn write_rates(report: &mut Report, scenario: &Scenario, rates: &Rates) {
    for ((_, contestant), rates) in rates.iter().filter(|((key, _), _)| *key == scenario.key) {
        let what = match contestant.split_once(' ') {
            Some((state, dispatchers)) => format!("ours, {state}, {}", number(dispatchers.parse().unwrap())),
            None if contestant == "article" => format!("article, {ARTICLE_WORKERS} workers"),
            None => contestant.clone(),
        };
        let metric = format!("{what}, median of {}", rates.len());
        report.row(&scenario.table.name, &metric, median(rates.iter().copied()), "messages/s");
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut samples = Samples::default();
    samples.extend(values);
    samples.median()
}

fn number(dispatchers: u32) -> String {
    format!("{dispatchers} dispatcher{}", if dispatchers == 1 { "" } else { "s" })
}

fn write(report: &mut Report, name: &str, contestant: &str, measured: &Measured) {
    let rows = measured.rows as f64;
    report.row(name, &format!("{contestant}: WAL"), measured.wal_bytes as f64 / rows, "bytes/message");
    report.row(name, &format!("{contestant}: dead rows left"), measured.dead_rows as f64 / rows, "/message");
    report.row(name, &format!("{contestant}: updates"), measured.updates as f64 / rows, "/message");
}

fn ask(report: &mut Report, rates: &Rates) {
    // of two contestants, by (scenario, contestant)
    let ratio = |one: (&'static str, &str), other: (&'static str, &str)| {
        let of = |(key, contestant): (&'static str, &str)| rates[&(key, contestant.to_owned())].iter();
        median(of(one).zip(of(other)).map(|(one, other)| one / other))
    };
    let twenty = "20 aggregates x 1,000";
    for dispatchers in DISPATCHERS {
        let ours: &str = &format!("cold {dispatchers}");
        let by = number(dispatchers);
        let floored = ratio(("uniform", ours), ("uniform", "floor"));
        report.at_least(0.7, "uniform", &format!("ours with {by} / floor"), floored, "x");
        let even = ratio(("uniform", ours), ("20 x 1,000", ours));
        report.at_most(2.0, twenty, &format!("slower than uniform, {by}"), even, "x");
        let article = ratio(("20 x 1,000", ours), ("20 x 1,000", "article"));
        report.at_least(150.0, twenty, &format!("ours with {by} / article"), article, "x");
    }
    for (key, name) in [("uniform", "uniform"), ("20 x 1,000", twenty)] {
        report.at_least(1.0, name, "4 dispatchers / 1", ratio((key, "cold 4"), (key, "cold 1")), "x");
    }
    for state in ["cold", "settled"] {
        for dispatchers in DISPATCHERS {
            let ours: &str = &format!("{state} {dispatchers}");
            let name = format!("90 % gated, {state}, {}", number(dispatchers));
            for (beside, key) in [("ungated", "ungated"), ("ungated with as many deliverable", "ungated, few")] {
                report.at_least(0.9, &name, &format!("rate / {beside}"), ratio(("gated", ours), (key, ours)), "x");
            }
        }
    }
}
