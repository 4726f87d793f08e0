//! A claim of 100 rows, ours beside the article's, on tables whose shape makes a claim cheap or dear.
//!
//! Ours is measured as the dispatcher claims: in windows from a position on, with its own cursor, all rows finalized
//! between two claims (untimed). *Cold* is a table that nobody has looked at: how long until 100 rows are in hand.
//! *Settled* is the same table once everything that waits has been parked. The article's rows are finalized in bulk
//! between its claims, untimed.

// the dispatcher's own rule, which the library keeps to itself
#[allow(dead_code, reason = "a bench without a harness compiles its unit tests and runs none")]
#[path = "../../src/dispatcher/cursor.rs"]
mod cursor;
mod looker;
mod scenario;
#[path = "../support/mod.rs"]
mod support;

// cursor.rs names it so
use ordered_outbox::store;

use looker::Ours;
use scenario::Scenario;
use support::report::Report;
use support::samples::{Samples, ms};
use support::{BATCH, article, progress, quick_or};

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
        let ids: Vec<_> = claimed.iter().map(|row| row.0).collect();
        let done = "UPDATE outbox SET status = 'done', done_at = now(), lease_owner = NULL, lease_until = NULL \
                    WHERE id = ANY ($1)";
        sqlx::query(done).bind(ids).execute(&pool).await.unwrap();
    }
    pool.close().await;
    (times, rows)
}

fn write(report: &mut Report, name: &str, ours: &Ours, article: &Samples, article_rows: &Samples) {
    report.row(name, "ours, cold: first 100 rows in hand, median", ours.cold_total.median(), "ms");
    report.row(name, "ours, cold: claims until then, median", ours.cold_claims.median(), "claims");
    report.row(name, "ours, cold: claim p50", ours.cold.median(), "ms");
    report.row(name, "ours, cold: samples (tables)", ours.cold_total.len() as f64, "");
    report.row(name, "ours, parking: time to its end", ms(ours.park_took), "ms");
    report.row(name, "ours, parking: rows parked", ours.parked as f64, "rows");
    report.row(name, "ours, settled: claim p50", ours.settled.median(), "ms");
    report.row(name, "ours, settled: claim p99", ours.settled.percentile(99), "ms");
    report.row(name, "ours, settled: rows per claim, median", ours.settled_rows.median(), "rows");
    report.row(name, "ours, settled: samples", ours.settled.len() as f64, "");
    if !ours.settled_full.is_empty() {
        report.row(name, "ours, settled: p50 of claims that returned 100", ours.settled_full.median(), "ms");
        report.row(name, "ours, settled: how many did", ours.settled_full.len() as f64, "");
    }
    report.row(name, "article: claim p50", article.median(), "ms");
    report.row(name, "article: claim p99", article.percentile(99), "ms");
    report.row(name, "article: rows per claim, median", article_rows.median(), "rows");
    report.row(name, "article: samples", article.len() as f64, "");
}

type Number = fn(&Ours) -> f64;

fn settled_p50(ours: &Ours) -> f64 {
    ours.settled.median()
}

fn cold_p50(ours: &Ours) -> f64 {
    ours.cold.median()
}

/// The scenario whose number is the largest.
fn slowest(found: &[(Scenario, Found)], number: impl Fn(&Ours) -> f64) -> (f64, &str) {
    found
        .iter()
        .map(|(scenario, found)| (number(&found.ours), scenario.name.as_str()))
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .expect("there are scenarios")
}

fn ask(report: &mut Report, found: &[(Scenario, Found)]) {
    for (state, p50) in [("settled", settled_p50 as Number), ("cold", cold_p50)] {
        let (most, name) = slowest(found, p50);
        let least = -slowest(found, |ours| -p50(ours)).0;
        report.at_most(5.0, &format!("slowest of all, {state}: {name}"), "claim p50", most, "ms");
        report.at_most(3.0, &format!("slowest beside fastest, {state}"), "claim p50", most / least, "x");
        for (scenario, found) in found.iter().filter(|(scenario, _)| scenario.is_deep) {
            let ratio = found.article.median() / p50(&found.ours);
            report.at_least(200.0, &scenario.name, &format!("article's claim p50 / ours {state}"), ratio, "x");
        }
    }
    for (scenario, found) in found.iter().filter(|(scenario, _)| scenario.is_deep) {
        let ratio = found.article.median() / found.ours.settled_full.median();
        report.at_least(200.0, &scenario.name, "article's claim p50 / ours settled that returned 100", ratio, "x");
    }
    let (most, name) = slowest(found, |ours| ours.settled.percentile(99));
    report.row(&format!("slowest of all, settled: {name}"), "claim p99", most, "ms");
    let (most, name) = slowest(found, |ours| ours.cold_total.median());
    report.row(&format!("slowest of all, cold: {name}"), &format!("first {BATCH} rows in hand"), most, "ms");
}
