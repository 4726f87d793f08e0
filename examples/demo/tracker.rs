//! What a careful consumer keeps: one high-water mark an aggregate. Pure, so that tests can feed it every disorder.

use std::collections::{HashMap, HashSet};

/// One received message, as far as order is concerned.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// The attribute `outbox-id`.
    pub(crate) id: i64,
    /// The message group.
    pub(crate) aggregate: String,
    /// The producer's own count within the aggregate, from 1: a second witness beside the id.
    pub(crate) seq: i64,
}

/// What a delivery was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Higher than everything of its aggregate so far: a consumer applies it.
    New,
    /// Received before: a consumer drops it.
    Duplicate,
    /// Never received, yet lower than its aggregate's high-water mark: order is broken.
    OutOfOrder,
}

#[derive(Default)]
struct Mark {
    id: i64,
    seq: i64,
}

/// Everything received so far.
#[derive(Default)]
pub(crate) struct Tracker {
    marks: HashMap<String, Mark>,
    seen: HashSet<i64>,
    missing: Vec<(String, i64)>,
    duplicates: u64,
    out_of_order: u64,
}

impl Tracker {
    pub(crate) fn record(&mut self, delivery: &Delivery) -> Arrival {
        if !self.seen.insert(delivery.id) {
            self.duplicates += 1;
            return Arrival::Duplicate;
        }
        let mark = self.marks.entry(delivery.aggregate.clone()).or_default();
        // The id and the producer's count must agree that this one is later.
        if delivery.id < mark.id || delivery.seq <= mark.seq {
            self.out_of_order += 1;
            return Arrival::OutOfOrder;
        }
        self.missing.extend((mark.seq + 1..delivery.seq).map(|seq| (delivery.aggregate.clone(), seq)));
        *mark = Mark { id: delivery.id, seq: delivery.seq };
        Arrival::New
    }

    /// Distinct ids received.
    pub(crate) const fn seen(&self) -> &HashSet<i64> {
        &self.seen
    }

    /// The count of the last applied event of an aggregate; 0 if there was none.
    pub(crate) fn seq(&self, aggregate: &str) -> i64 {
        self.marks.get(aggregate).map_or(0, |mark| mark.seq)
    }

    /// Counts that were passed over: (aggregate, seq).
    pub(crate) fn missing(&self) -> &[(String, i64)] {
        &self.missing
    }

    pub(crate) const fn duplicates(&self) -> u64 {
        self.duplicates
    }

    pub(crate) const fn out_of_order(&self) -> u64 {
        self.out_of_order
    }
}
