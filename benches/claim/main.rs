//! A claim of 100 rows, ours beside the article's, on tables whose shape makes a claim cheap or dear.
//!
//! Ours is measured as the dispatcher claims: in windows from a position on, with its own cursor, all rows finalized
//! between two claims (untimed). *Cold* is a table that nobody has looked at, *settled* the same table once everything that
//! waits has been parked. What the first claim of a new connection on such a table takes, which reads it into PostgreSQL's
//! memory, is told by itself. The article's rows are finalized in bulk between its claims, untimed.

// the dispatcher's own rules, which the library keeps to itself
#[allow(dead_code, reason = "a bench without a harness compiles its unit tests and runs none")]
#[path = "../../src/dispatcher/aside.rs"]
mod aside;
#[allow(dead_code, reason = "a bench without a harness compiles its unit tests and runs none")]
#[path = "../../src/dispatcher/cursor.rs"]
mod cursor;
mod looker;
mod scenario;
#[path = "../support/mod.rs"]
mod support;

// cursor.rs names it so
use ordered_outbox::store;

use looker::{Claims, Ours};
use scenario::Scenario;
use support::report::Report;
use support::samples::{Samples, ms};
use support::{article, progress, quick_or};

use std::time::{Duration, Instant};

use support::database::Database;

/// Everything about one scenario that a ratio is made of.
struct Found {
    ours: Ours,
    article: Samples,
}

fn main() {
    support::run(async {
        let mut report = Report::new("claim");
        let mut found = Vec::new();
        for scenario in scenario::all() {
            let template = Database::load(&scenario.table).await;
            let _progress = progress::step(&format!("claiming from {}", scenario.name));
            let ours = looker::measure(&template, &scenario).await;
            let (article, article_rows) = measure_article(&template, &scenario).await;
            write(&mut report, &scenario.name, &ours, &article, &article_rows);
            found.push((scenario, Found { ours, article }));
        }
        ask(&mut report, &found);
        report.write();
    });
}

/// The article's claims until there are enough of them, or too long, or nothing is left.
async fn measure_article(template: &Database, scenario: &Scenario) -> (Samples, Samples) {
    let database = template.copy().await;
    let _snapshot = scenario.snapshot(&database).await;
    let pool = database.plain_pool(1).await;
    let (mut times, mut rows) = (Samples::default(), Samples::default());
    let give_up = Instant::now() + quick_or(Duration::from_secs(2), Duration::from_secs(30));
    while times.len() < quick_or(30, 300) && Instant::now() < give_up {
        let start = Instant::now();
        let claimed = article::claim(&pool, "bench").await;
        let took = start.elapsed();
        if claimed.is_empty() {
            break;
        }
        times.push_ms(took);
        rows.push(claimed.len() as f64);
        article::mark_all_done(&pool, &claimed).await;
    }
    pool.close().await;
    (times, rows)
}

fn write(report: &mut Report, name: &str, ours: &Ours, article: &Samples, article_rows: &Samples) {
    report.row(name, "ours, first 100 rows in hand, median", ours.first_total.median(), "ms");
    report.row(name, "ours, claims until then, median", ours.first_claims.median(), "claims");
    report.row(name, "ours, parking: time to its end", ms(ours.park_took), "ms");
    report.row(name, "ours, parking: rows parked", ours.parked as f64, "rows");
    for (state, claims) in [("cold", &ours.cold), ("settled", &ours.settled)] {
        let mut row = |what: &str, value, unit| report.row(name, &format!("ours, {state}: {what}"), value, unit);
        row("claim p50", claims.all.median(), "ms");
        row("claim p99", claims.all.percentile(99), "ms");
        row("rows per claim, median", claims.rows.median(), "rows");
        row("samples", claims.all.len() as f64, "");
        if !claims.full.is_empty() {
            row("p50 of claims that returned 100", claims.full.median(), "ms");
            row("how many did", claims.full.len() as f64, "");
        }
    }
    report.row(name, "article: claim p50", article.median(), "ms");
    report.row(name, "article: claim p99", article.percentile(99), "ms");
    report.row(name, "article: rows per claim, median", article_rows.median(), "rows");
    report.row(name, "article: samples", article.len() as f64, "");
}

type State = fn(&Ours) -> &Claims;

/// The scenario whose number is the largest.
fn slowest(found: &[(Scenario, Found)], number: impl Fn(&Ours) -> f64) -> (f64, &str) {
    found
        .iter()
        .map(|(scenario, found)| (number(&found.ours), scenario.name.as_str()))
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .expect("there are scenarios")
}

fn ask(report: &mut Report, found: &[(Scenario, Found)]) {
    let states: [(&str, State); 2] = [("cold", |ours| &ours.cold), ("settled", |ours| &ours.settled)];
    for (name, state) in states {
        let p50 = |ours: &Ours| state(ours).p50();
        let (most, slowest_name) = slowest(found, p50);
        let least = -slowest(found, |ours| -p50(ours)).0;
        report.at_most(5.0, &format!("slowest of all, {name}: {slowest_name}"), "claim p50", most, "ms");
        report.at_most(3.0, &format!("slowest beside fastest, {name}"), "claim p50", most / least, "x");
        for (scenario, found) in found.iter().filter(|(scenario, _)| scenario.is_deep) {
            let ours = state(&found.ours);
            for (which, p50) in [("", ours.all.median()), (" that returned 100", ours.p50())] {
                let metric = format!("article's claim p50 / ours {name}{which}");
                report.at_least(200.0, &scenario.name, &metric, found.article.median() / p50, "x");
            }
        }
        let (most, slowest_name) = slowest(found, |ours| state(ours).all.percentile(99));
        report.row(&format!("slowest of all, {name}: {slowest_name}"), "claim p99", most, "ms");
    }
    let (most, name) = slowest(found, |ours| ours.first_total.median());
    report.row(&format!("slowest of all: {name}"), "first 100 rows in hand", most, "ms");
}
