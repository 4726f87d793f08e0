//! What the benches share. Each has databases of its own, which it drops at its end.
//!
//! State of the tables unless a scenario says otherwise: autovacuum off, VACUUM ANALYZE after loading and never again, so
//! that what a run leaves behind it (dead rows, dead index entries) is paid for by that run.
#![allow(dead_code, reason = "each bench uses a part of it")]
#![allow(unreachable_pub, reason = "compiled into every bench as a private module")]

pub mod accepting;
pub mod article;
pub mod database;
pub mod ours;
pub mod progress;
pub mod report;
pub mod samples;
pub mod table;

use std::future::Future;

use tokio::signal::unix::{SignalKind, signal};

/// Rows of a claim, as by default and as in the article.
pub const BATCH: u32 = 100;

/// Whether the short run was asked for: smaller tables, fewer samples. Names of scenarios say the sizes of this run.
pub fn is_quick() -> bool {
    std::env::var("QUICK").is_ok_and(|quick| !["", "0"].contains(&quick.as_str()))
}

/// The first in a short run, otherwise the second.
pub fn quick_or<T>(quick: T, full: T) -> T {
    if is_quick() { quick } else { full }
}

/// Whether Cargo was asked to bench, and not to test benches.
pub fn is_benching() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

/// Runs a bench to its end; does nothing unless Cargo was asked to bench, as `cargo test --benches` is not.
///
/// A signal ends it early: dropped half-way, it still drops its databases.
pub fn run(bench: impl Future<Output = ()>) {
    if !is_benching() {
        return;
    }
    let ended = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut terminate = signal(SignalKind::terminate()).unwrap();
        tokio::select! {
            () = bench => true,
            _ = terminate.recv() => false,
            _ = tokio::signal::ctrl_c() => false,
        }
    });
    if !ended {
        std::process::exit(1);
    }
}

/// A number with its thousands apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
