//! The demo runs end to end, and its checks can fail.

#![allow(unreachable_pub, reason = "the demo's own modules, compiled in here")]

#[path = "../examples/demo/count.rs"]
mod count;
#[path = "../examples/demo/tracker.rs"]
mod tracker;

use std::path::{Path, PathBuf};
use std::process::Command;

use count::{Count, Rows};
use tracker::{Arrival, Delivery, Tracker};

/// Cargo puts examples beside the folder of this test.
fn demo() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let demo = own.ancestors().nth(2).unwrap().join("examples").join("demo");
    assert!(demo.is_file(), "{} is missing: run `cargo build --example demo` first", demo.display());
    assert!(Path::new(env!("CARGO_BIN_EXE_outbox")).is_file());
    demo
}

#[test]
fn a_small_demo_loses_and_reorders_nothing_and_says_so_in_its_last_line() {
    let output = Command::new(demo()).args(["--orders", "50"]).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    let last = stdout.lines().last().unwrap();
    let rest = last
        .strip_prefix("demo: 300 committed, 299 delivered, 1 skipped, 0 lost, 0 out of order, ")
        .unwrap_or_else(|| panic!("{last}"));
    let (duplicates, seconds) = rest.split_once(" duplicates, ").unwrap_or_else(|| panic!("{last}"));
    assert!(duplicates.parse::<u64>().is_ok(), "{last}");
    assert!(seconds.strip_suffix(" s").is_some_and(|seconds| seconds.parse::<f64>().is_ok()), "{last}");
}

#[test]
fn a_demo_without_services_is_refused_with_its_remedy() {
    for missing in ["DATABASE_URL", "AWS_ENDPOINT_URL"] {
        let output = Command::new(demo()).env_remove(missing).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            format!("demo: {missing} is not set: run `make demo`, or `. localstack/env` first\n")
        );
        assert!(output.stdout.is_empty());
    }
}

/// Two aggregates of four events each: ids 1-4 and 5-8. Message 6 is skipped.
fn rows() -> Rows {
    Rows { committed: (1..=8).collect(), skipped: [6].into(), unfinished: 0 }
}

fn delivery(id: i64) -> Delivery {
    let (aggregate, seq) = if id <= 4 { ("order-1", id) } else { ("order-2", id - 4) };
    Delivery { id, aggregate: aggregate.to_owned(), seq }
}

fn received(ids: &[i64]) -> Count {
    let mut tracker = Tracker::default();
    for id in ids {
        tracker.record(&delivery(*id));
    }
    Count::new(&rows(), &tracker)
}

#[test]
fn a_complete_delivery_has_no_problem_and_copies_are_none() {
    let count = received(&[1, 5, 2, 2, 7, 3, 1, 4, 8]);
    assert_eq!(count.problems(), Vec::<String>::new());
    assert_eq!((count.committed, count.delivered, count.skipped, count.lost), (8, 7, 1, 0));
    assert_eq!((count.duplicates, count.out_of_order), (2, 0));
    assert_eq!(count.missing, [("order-2".to_owned(), 2)]);
}

#[test]
fn a_loss_is_found_wherever_it_is() {
    for lost in [1, 3, 4, 8] {
        let ids: Vec<_> = [1, 2, 3, 4, 5, 7, 8].into_iter().filter(|id| *id != lost).collect();
        assert_eq!(received(&ids).problems(), ["1 committed messages were lost"]);
    }
}

#[test]
fn two_swapped_deliveries_are_found_and_no_copy_hides_them() {
    assert_eq!(received(&[1, 3, 2, 4, 5, 7, 8]).problems(), ["1 messages arrived out of order"]);
    // A copy in the right place later does not mend it.
    let count = received(&[1, 3, 2, 3, 4, 5, 7, 8]);
    assert_eq!(count.problems(), ["1 messages arrived out of order"]);
    assert_eq!(count.duplicates, 1);
}

#[test]
fn ids_that_contradict_the_producers_own_count_are_out_of_order() {
    let mut tracker = Tracker::default();
    assert_eq!(tracker.record(&delivery(1)), Arrival::New);
    assert_eq!(tracker.record(&delivery(3)), Arrival::New);
    // drawn later, yet its producer counted it before the last one
    assert_eq!(tracker.record(&Delivery { id: 9, seq: 2, ..delivery(1) }), Arrival::OutOfOrder);
    assert_eq!(tracker.missing(), [("order-1".to_owned(), 2)]);
    assert_eq!((tracker.seq("order-1"), tracker.seq("order-2")), (3, 0));
}

#[test]
fn what_was_never_committed_and_what_was_skipped_must_not_arrive() {
    assert_eq!(received(&[1, 2, 3, 4, 5, 7, 8, 9]).problems(), ["1 messages arrived that were never committed"]);
    assert_eq!(received(&[1, 2, 3, 4, 5, 6, 7, 8]).problems(), ["1 messages arrived although they were skipped"]);
}
