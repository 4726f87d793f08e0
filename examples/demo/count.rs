//! Committed against received: every number of the demo's last line, and what is wrong with them. Pure.

use std::collections::HashSet;

use serde::Serialize;

use crate::tracker::Tracker;

/// Every row of the outbox.
#[derive(Default)]
pub(crate) struct Rows {
    /// Every id.
    pub(crate) committed: HashSet<i64>,
    /// Those that a person skipped.
    pub(crate) skipped: HashSet<i64>,
    /// How many are not `done`.
    pub(crate) unfinished: u64,
}

/// Received ids against committed ones, and the tracker's findings: the numbers of the last line.
#[derive(Clone, Default, Serialize)]
pub(crate) struct Count {
    /// Rows of the outbox.
    pub(crate) committed: u64,
    /// Of these, received at least once.
    pub(crate) delivered: u64,
    /// Of these, skipped by a person.
    pub(crate) skipped: u64,
    /// Neither.
    pub(crate) lost: u64,
    /// Both.
    pub(crate) delivered_though_skipped: u64,
    /// Received without ever being committed.
    pub(crate) phantoms: u64,
    /// Rows that are not done.
    pub(crate) unfinished: u64,
    /// Copies.
    pub(crate) duplicates: u64,
    /// First deliveries below their aggregate's high-water mark.
    pub(crate) out_of_order: u64,
    /// Events that a consumer found passed over: (aggregate, seq).
    pub(crate) missing: Vec<(String, i64)>,
}

impl Count {
    pub(crate) fn new(rows: &Rows, tracker: &Tracker) -> Self {
        let seen = tracker.seen();
        let both = |a: &HashSet<i64>, b: &HashSet<i64>| a.intersection(b).count() as u64;
        let answered = |id: &&i64| !seen.contains(id) && !rows.skipped.contains(id);
        Self {
            committed: rows.committed.len() as u64,
            delivered: both(&rows.committed, seen),
            skipped: rows.skipped.len() as u64,
            lost: rows.committed.iter().filter(answered).count() as u64,
            delivered_though_skipped: both(&rows.skipped, seen),
            phantoms: seen.difference(&rows.committed).count() as u64,
            unfinished: rows.unfinished,
            duplicates: tracker.duplicates(),
            out_of_order: tracker.out_of_order(),
            missing: tracker.missing().to_vec(),
        }
    }

    /// What breaks a promise, one sentence each. Duplicates do not: delivery is at least once.
    pub(crate) fn problems(&self) -> Vec<String> {
        [
            (self.lost, "committed messages were lost"),
            (self.out_of_order, "messages arrived out of order"),
            (self.phantoms, "messages arrived that were never committed"),
            (self.delivered_though_skipped, "messages arrived although they were skipped"),
            (self.unfinished, "rows of the outbox are not done"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect()
    }
}
