//! Puts together what the other benches found: one table, and `target/bench/report.json`.

#[path = "support/mod.rs"]
mod support;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use sqlx::{Connection as _, PgConnection};

use support::report::{Asked, Report, Row, folder};
use support::{BATCH, count, is_quick};

const BENCHES: [&str; 6] = ["claim", "dispatch", "hot_aggregate", "latency", "memory", "baseline"];

fn main() {
    support::run(async {
        let mut rows = Vec::new();
        let mut asked = Vec::new();
        for bench in BENCHES {
            match Report::read(bench) {
                Some(report) => {
                    rows.extend(report.rows);
                    asked.extend(report.asked);
                }
                None => eprintln!("{bench}: NOT MEASURED in this run"),
            }
        }
        println!("{}", table(&rows, &asked));
        println!("{}", configuration().await);
        rows.extend(asked.into_iter().map(|asked| Row {
            metric: format!("{} (asked for: {}, {})", asked.row.metric, limit(&asked), verdict(&asked)),
            ..asked.row
        }));
        let path = folder().join("report.json");
        std::fs::create_dir_all(folder()).unwrap();
        std::fs::write(&path, serde_json::to_string_pretty(&rows).unwrap()).unwrap();
        println!("written to {}", path.display());
    });
}

fn table(rows: &[Row], asked: &[Asked]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_header(["bench", "scenario", "metric", "value", "unit", "asked for", ""]);
    let mut above = ("", "");
    for row in rows {
        let here = (row.bench.as_str(), row.scenario.as_str());
        table.add_row(cells(row, here == above));
        above = here;
    }
    for asked in asked {
        let mut cells = cells(&asked.row, false);
        cells.extend([Cell::new(limit(asked)), Cell::new(verdict(asked))]);
        table.add_row(cells);
    }
    table
}

fn cells(row: &Row, is_repeated: bool) -> Vec<Cell> {
    let (bench, scenario) = if is_repeated { ("", "") } else { (row.bench.as_str(), row.scenario.as_str()) };
    let mut cells = [bench, scenario, &row.metric].map(Cell::new).to_vec();
    cells.push(Cell::new(number(row.value)).set_alignment(CellAlignment::Right));
    cells.push(Cell::new(&row.unit));
    cells
}

fn limit(asked: &Asked) -> String {
    let bound = if asked.at_least { "at least" } else { "at most" };
    format!("{bound} {} {}", asked.limit, asked.row.unit).trim_end().to_owned()
}

fn verdict(asked: &Asked) -> &'static str {
    if asked.is_met() { "met" } else { "MISSED" }
}

/// Three digits, and no more than there were.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => count(value.round() as u64),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ if value.fract() == 0.0 => format!("{value}"),
        _ => format!("{value:.2}"),
    }
}

/// What the numbers depend on.
async fn configuration() -> String {
    let url = std::env::var("DATABASE_URL").expect("DATABASE_URL is not set: run `make bench`");
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let mut settings = Vec::new();
    for name in ["server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size"]
    {
        let setting: String =
            sqlx::query_scalar("SELECT current_setting($1)").bind(name).fetch_one(&mut connection).await.unwrap();
        settings.push(format!("{name} {setting}"));
    }
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let config = ordered_outbox::DispatcherConfig::default();
    format!(
        "{} run; {cores} cores for PostgreSQL, dispatchers and bench together; PostgreSQL: {}\n\
         Claims of up to {BATCH} rows, run length {}, windows of {BATCH} to 1,000 rows; publish concurrency {}; \
         4 connections a dispatcher.\n\
         Autovacuum off, VACUUM ANALYZE and a checkpoint after loading, and never again. The article's SQL runs on this table and its indexes, \
         on connections without pinned settings.",
        if is_quick() { "QUICK" } else { "Full" },
        settings.join(", "),
        config.run_length,
        config.concurrency,
    )
}
