//! The names of what is counted, through the `metrics` facade. A process without a recorder pays nothing.

use metrics::{counter, histogram};

/// Rows claimed.
pub const CLAIMED: &str = "outbox_claimed_total";
/// Outcomes, by `class`: published, backoff, defer, permanent, unavailable, unclassified.
pub const OUTCOMES: &str = "outbox_outcomes_total";
/// Rows whose finalize or release found the lease taken over.
pub const LEASE_LOST: &str = "outbox_lease_lost_total";
/// Rows handed back untried, attempt refunded.
pub const RELEASED: &str = "outbox_released_total";
/// Rows declared dead because their lease ran out with no attempts left.
pub const REAPED: &str = "outbox_reaped_total";
/// Rows parked: they wait behind others, and claims do not look at them any more.
pub const PARKED: &str = "outbox_parked_total";
/// Heads found parked with nothing in front of them, and made ready. Only a change by hand leaves one.
pub const STRANDED_HEADS: &str = "outbox_stranded_heads_total";
/// Messages that were not accepted in a request in which a later one of the same aggregate was.
pub const ORDER_GAPS: &str = "outbox_order_gaps_total";
/// Messages in a publish request.
pub const REQUEST_ENTRIES: &str = "outbox_request_entries";

pub(crate) fn claimed(rows: usize) {
    counter!(CLAIMED).increment(rows as u64);
}

pub(crate) fn outcome(class: &'static str) {
    counter!(OUTCOMES, "class" => class).increment(1);
}

pub(crate) fn lease_lost() {
    counter!(LEASE_LOST).increment(1);
}

pub(crate) fn released(rows: usize) {
    counter!(RELEASED).increment(rows as u64);
}

pub(crate) fn reaped(rows: usize) {
    counter!(REAPED).increment(rows as u64);
}

pub(crate) fn parked(rows: u64) {
    counter!(PARKED).increment(rows);
}

pub(crate) fn stranded(rows: usize) {
    counter!(STRANDED_HEADS).increment(rows as u64);
}

pub(crate) fn order_gap() {
    counter!(ORDER_GAPS).increment(1);
}

pub(crate) fn request(entries: usize) {
    histogram!(REQUEST_ENTRIES).record(entries as f64);
}
