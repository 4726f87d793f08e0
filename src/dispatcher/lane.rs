//! A lane: one aggregate's claimed run, sent in order under one lease, strictly one message after the other.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::capacity::Permit;
use crate::message::{Message, MessageId};

/// A claimed message and its share of what this dispatcher may hold.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) message: Message,
    /// Freed when the row has left `processing`, or was given up.
    pub(super) permit: Permit,
}

/// Messages of one aggregate, in id order. At most one request holds messages of it, and strictly only one (P2).
#[derive(Debug)]
pub(super) struct Lane {
    waiting: VecDeque<Held>,
    /// No publish starts after this: it could outlive the lease (P6).
    start_by: Instant,
}

impl Lane {
    /// Splits a claim, ordered by (aggregate id, id), into lanes, oldest head first.
    pub(super) fn split(claimed: Vec<Held>, start_by: Instant) -> Vec<Self> {
        let mut lanes: Vec<Self> = Vec::new();
        for held in claimed {
            match lanes.last_mut() {
                Some(lane) if lane.aggregate_id() == Some(&held.message.aggregate_id) => lane.waiting.push_back(held),
                _ => lanes.push(Self { waiting: VecDeque::from([held]), start_by }),
            }
        }
        lanes.sort_by_key(Self::head_id);
        lanes
    }

    fn aggregate_id(&self) -> Option<&String> {
        self.waiting.front().map(|held| &held.message.aggregate_id)
    }

    fn head_id(&self) -> Option<MessageId> {
        self.waiting.front().map(|held| held.message.id)
    }

    /// The message to send next.
    pub(super) fn head(&self) -> Option<&Message> {
        self.waiting.front().map(|held| &held.message)
    }

    /// Takes the message to send next; the lane goes on only after everything taken was published.
    pub(super) fn take_head(&mut self) -> Option<Held> {
        self.waiting.pop_front()
    }

    /// Puts back what was taken and not published, in order, to be sent again.
    pub(super) fn put_back(&mut self, taken: Vec<Held>) {
        for held in taken.into_iter().rev() {
            self.waiting.push_front(held);
        }
    }

    /// The last moment at which a publish may start.
    pub(super) const fn start_by(&self) -> Instant {
        self.start_by
    }

    /// Whether a publish that starts now could outlive the lease.
    pub(super) fn is_too_late(&self, now: Instant) -> bool {
        now > self.start_by
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What was not tried, in order.
    pub(super) fn into_untried(self) -> impl Iterator<Item = Held> {
        self.waiting.into_iter()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    pub(in crate::dispatcher) fn held(aggregate_id: &str, id: MessageId) -> Held {
        Held {
            message: Message {
                id,
                lease_version: 1,
                attempts: 1,
                aggregate_type: "order".into(),
                aggregate_id: aggregate_id.into(),
                event_type: "OrderPlaced".into(),
                payload: "{}".into(),
                headers_json: "{}".into(),
                first_tried: None,
                age: Duration::ZERO,
            },
            permit: Permit::none(),
        }
    }

    fn untried(lane: Lane) -> Vec<MessageId> {
        lane.into_untried().map(|held| held.message.id).collect()
    }

    #[tokio::test]
    async fn a_claim_splits_into_one_lane_an_aggregate_oldest_head_first_each_in_order() {
        let claimed = vec![held("a", 4), held("a", 9), held("b", 1), held("b", 2), held("b", 7), held("c", 3)];
        let lanes = Lane::split(claimed, Instant::now());
        assert_eq!(lanes.into_iter().map(untried).collect::<Vec<_>>(), [vec![1, 2, 7], vec![3], vec![4, 9]]);
    }

    #[tokio::test]
    async fn a_lane_gives_its_messages_one_by_one() {
        let mut lanes = Lane::split(vec![held("a", 1), held("a", 2), held("a", 3)], Instant::now());
        let mut lane = lanes.pop().unwrap();
        assert_eq!(lane.take_head().unwrap().message.id, 1);
        assert_eq!(lane.head().unwrap().id, 2);
        assert_eq!(untried(lane), [2, 3]);
    }

    #[tokio::test]
    async fn a_lane_is_too_late_only_after_its_last_start() {
        let start_by = Instant::now();
        let lane = Lane::split(vec![held("a", 1)], start_by).pop().unwrap();
        assert!(!lane.is_too_late(start_by));
        assert!(lane.is_too_late(start_by + Duration::from_nanos(1)));
    }
}
