//! Tables to dispatch from: what is in them, and the name that says so.

use super::count;

#[derive(Clone)]
pub struct Table {
    pub name: String,
    /// Messages that can be delivered.
    pub deliverable: u64,
    pub statements: Vec<String>,
}

impl Table {
    pub fn empty() -> Self {
        Self { name: "an empty table".into(), deliverable: 0, statements: Vec::new() }
    }

    /// Turn by turn, so that the messages of an aggregate are far apart.
    pub fn even(aggregates: u64, each: u64) -> Self {
        let (s, rows) = (if aggregates == 1 { "" } else { "s" }, aggregates * each);
        Self {
            name: format!("{} aggregate{s} x {}", count(aggregates), count(each)),
            deliverable: rows,
            statements: vec![pending(rows, &format!("'order-' || n % {aggregates}"))],
        }
    }

    /// One aggregate with a long backlog, and behind it others with two messages.
    pub fn hot(depth: u64, others: u64) -> Self {
        Self {
            name: format!("1 aggregate x {}, then {} x 2", count(depth), count(others)),
            deliverable: depth + 2 * others,
            statements: vec![pending(depth, "'hot'"), pending(2 * others, &format!("'order-' || n % {others}"))],
        }
    }

    /// Some of the aggregates begin with a dead message.
    pub fn gated(aggregates: u64, each: u64, percent: u64) -> Self {
        let gated = aggregates * percent / 100;
        let dead = insert(", status, attempts, last_error", "'order-' || n", ", 'dead', 12, 'refused'", gated);
        // gated ones are the lowest numbers: spread over the turn, not side by side
        let spread = format!("'order-' || n * 7 % {aggregates} + 1");
        Self {
            name: format!("{} aggregates x {}, {percent} % gated", count(aggregates), count(each)),
            deliverable: (aggregates - gated) * each,
            statements: vec![dead, pending(aggregates * each, &spread)],
        }
    }

    /// Few messages beside many that are done.
    pub fn done(kept: u64, waiting: u64) -> Self {
        let done = insert(
            ", status, attempts, lease_version, done_at, broker_message_id, broker_sequence",
            "'order-' || n % 50000",
            ", 'done', 1, 1, now() - n * interval '10 milliseconds', '7f9c24e8-3b12-4d6a-9c1e-5a0b7d3f8e21', \
             '18849496460467696128'",
            kept,
        );
        Self {
            name: format!("{} done kept, {} pending", count(kept), count(waiting)),
            deliverable: waiting,
            statements: vec![done, pending(waiting, "'order-' || n")],
        }
    }

    /// Few messages beside many that are not due for an hour.
    pub fn backoff(later: u64, waiting: u64) -> Self {
        let backoff = insert(
            ", attempts, lease_version, last_error, available_at",
            "'later-' || n",
            ", 1, 1, 'timed out', now() + interval '1 hour'",
            later,
        );
        Self {
            name: format!("{} in backoff, {} pending", count(later), count(waiting)),
            deliverable: waiting,
            statements: vec![backoff, pending(waiting, "'order-' || n")],
        }
    }
}

fn pending(rows: u64, aggregate_id: &str) -> String {
    insert("", aggregate_id, "", rows)
}

fn insert(columns: &str, aggregate_id: &str, values: &str, rows: u64) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload{columns}) \
         SELECT 'order', {aggregate_id}, 'OrderPlaced', jsonb_build_object('amount', n){values} \
         FROM generate_series(1, {rows}) AS n"
    )
}
