//! The names of what is counted, through the `metrics` facade. A process without a recorder pays nothing.

use metrics::{counter, gauge, histogram};

use crate::outcome::Trouble;

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
/// State of the breaker, by `queue`: 0 closed, 1 half open, 2 open.
pub const BREAKER_STATE: &str = "outbox_breaker_state";
/// How often the breaker opened, by `queue` and `trouble`.
pub const BREAKER_OPENINGS: &str = "outbox_breaker_openings_total";
/// Requests that a destination did not take, by `queue` and `trouble`; throttled ones are among them.
pub const DESTINATION_TROUBLE: &str = "outbox_destination_trouble_total";
/// Most requests in flight just now, by `queue`: throttling shrinks it.
pub const CONCURRENCY: &str = "outbox_publish_concurrency";
/// Messages sent again later than 5 minutes after their first try: only of these may a consumer see a copy that SQS would
/// have dropped before.
pub const DEDUP_WINDOW_EXCEEDED: &str = "outbox_dedup_window_exceeded_total";
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

/// Every label is there from the start, at zero.
pub(crate) fn breaker_known(queue: &str, troubles: impl IntoIterator<Item = Trouble>) {
    for trouble in troubles {
        counter!(BREAKER_OPENINGS, "queue" => queue.to_owned(), "trouble" => trouble.as_str()).increment(0);
        counter!(DESTINATION_TROUBLE, "queue" => queue.to_owned(), "trouble" => trouble.as_str()).increment(0);
    }
}

pub(crate) fn breaker(queue: &str, state: f64, concurrency: usize) {
    gauge!(BREAKER_STATE, "queue" => queue.to_owned()).set(state);
    gauge!(CONCURRENCY, "queue" => queue.to_owned()).set(concurrency as f64);
}

pub(crate) fn breaker_opened(queue: &str, trouble: Trouble) {
    counter!(BREAKER_OPENINGS, "queue" => queue.to_owned(), "trouble" => trouble.as_str()).increment(1);
}

pub(crate) fn destination_trouble(queue: &str, trouble: Trouble) {
    counter!(DESTINATION_TROUBLE, "queue" => queue.to_owned(), "trouble" => trouble.as_str()).increment(1);
}

pub(crate) fn dedup_window_exceeded(messages: usize) {
    counter!(DEDUP_WINDOW_EXCEEDED).increment(messages as u64);
}
