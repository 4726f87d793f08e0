//! Most memory the program ever holds: a million small messages, and ten thousand of 900 KB.
//!
//! The program is run as people run it, against a stand-in for SQS on loopback that accepts everything at once. Peak of
//! the resident set is `VmHWM` of `/proc/PID/status`: only Linux has it.

#[path = "../../tests/support/mod.rs"]
mod fixtures;
mod program;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use fixtures::sqs::{Fault, Request, Sqs};
use program::Peak;
use rand::distr::{Alphanumeric, SampleString as _};
use serde_json::json;
use support::database::Database;
use support::progress;
use support::report::Report;
use support::table::Table;
use support::{count, quick_or};

const PAYLOAD_BYTES: usize = 900_000;

struct Scenario {
    table: Table,
    /// Then it is stopped: it holds two batches by then, and never more.
    stop_after: Duration,
    limit_mib: f64,
}

fn main() {
    support::run(async {
        if !cfg!(target_os = "linux") {
            eprintln!("memory: NOT MEASURED, only Linux tells the peak of another process");
            return;
        }
        let mut report = Report::new("memory");
        let stop_after = quick_or(Duration::from_secs(15), Duration::from_mins(10));
        for scenario in [
            Scenario { table: Table::even(quick_or(200_000, 1_000_000), 1), stop_after, limit_mib: 64.0 },
            Scenario { table: large(quick_or(500, 10_000)), stop_after, limit_mib: 256.0 },
        ] {
            measure(&mut report, &scenario).await;
        }
        report.write();
    });
}

/// Every message has an aggregate of its own, so that nothing but the program's bounds limits how many are in hand.
fn large(rows: u64) -> Table {
    let text = Alphanumeric.sample_string(&mut rand::rng(), PAYLOAD_BYTES);
    Table {
        name: format!("{} messages of {} KB", count(rows), PAYLOAD_BYTES / 1_000),
        deliverable: rows,
        statements: vec![
            // random text cannot be made smaller; trying to would take most of the loading time
            "ALTER TABLE outbox ALTER COLUMN payload SET STORAGE EXTERNAL".into(),
            format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                 SELECT 'order', 'order-' || n, 'OrderPlaced', to_jsonb('{text}'::text) FROM generate_series(1, {rows}) AS n"
            ),
        ],
    }
}

async fn measure(report: &mut Report, scenario: &Scenario) {
    let database = Database::load(&scenario.table).await;
    let sqs = Sqs::start();
    let url = sqs.create("bench.fifo", &[]);
    sqs.script(|request| request.sends().then(|| confirms_and_forgets(request)));
    let name = &scenario.table.name;
    let _progress = progress::step(&format!("running the program on {name}"));
    let Peak { mib, published, took } = program::run(&database, &sqs, &url, scenario.stop_after).await;
    report.row(name, "peak resident set", mib, "MiB");
    report.row(name, "messages published", published as f64, "messages");
    report.row(name, "rate, SDK and HTTP included", published as f64 / took.as_secs_f64(), "messages/s");
    report.at_most(scenario.limit_mib, name, "peak resident set", mib, "MiB");
}

/// Confirms every message and keeps none: a queue of nine gigabytes would not help.
fn confirms_and_forgets(request: &Request) -> Fault {
    let words = request.entries.iter().map(|entry| {
        let id = &entry.id;
        json!({"Id": id, "MessageId": format!("m{id}"), "MD5OfMessageBody": "0", "SequenceNumber": format!("s{id}")})
    });
    Fault::says(&json!({"Successful": words.collect::<Vec<_>>()}))
}
