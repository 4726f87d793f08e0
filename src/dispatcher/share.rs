//! A share: what one lane has in one request.

use super::capacity::Permit;
use super::lane::{Held, Lane};
use crate::message::Message;
use crate::outcome::Outcome;
use crate::publisher::{Destination, Limits, Publisher};

/// Consecutive messages of one lane, in order, and what is left of the lane. Strict, it is the head alone.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) messages: Vec<Held>,
    pub(super) lane: Lane,
}

impl Share {
    /// Takes the head out of its lane.
    pub(super) fn of_head(mut lane: Lane) -> Self {
        Self { messages: lane.take_head().into_iter().collect(), lane }
    }

    /// Puts the messages into a request, behind those that are in it.
    pub(super) fn depart(self, request: &mut Vec<Message>) -> Tail {
        let Self { messages, lane } = self;
        let (messages, permits): (Vec<_>, Vec<_>) =
            messages.into_iter().map(|Held { message, permit }| (message, permit)).unzip();
        request.extend(messages);
        Tail { permits, lane }
    }
}

/// What a share in flight leaves behind here: a permit for each of its messages, and the rest of the lane.
#[derive(Debug)]
pub(super) struct Tail {
    permits: Vec<Permit>,
    lane: Lane,
}

impl Tail {
    /// Takes the answers to its own messages from the front of those to a request, and gives the lane back.
    pub(super) fn meet(self, answers: &mut impl Iterator<Item = (Message, Outcome)>) -> (Vec<Tried>, Lane) {
        let own = answers.by_ref().take(self.permits.len());
        let tried =
            own.zip(self.permits).map(|((message, outcome), permit)| Tried { message, permit, outcome }).collect();
        (tried, self.lane)
    }
}

/// A message that came back.
#[derive(Debug)]
pub(super) struct Tried {
    pub(super) message: Message,
    pub(super) permit: Permit,
    pub(super) outcome: Outcome,
}

impl Tried {
    /// Without what became of it.
    pub(super) fn into_held(self) -> Held {
        Held { message: self.message, permit: self.permit }
    }

    pub(super) const fn is_published(&self) -> bool {
        matches!(self.outcome, Outcome::Published { .. })
    }
}

/// Fills the room that the heads of a request left: in turn one message a lane, oldest lane first, until each lane has
/// `group_batching` messages or nothing fits any more.
///
/// In turn, so that a hot aggregate takes no entry that another lane could have used as well.
pub(super) fn fill(
    shares: &mut [Share],
    group_batching: usize,
    limits: Limits,
    destination: &Destination,
    publisher: &impl Publisher,
) {
    // strict costs nothing more: no message is measured twice
    if group_batching <= 1 {
        return;
    }
    let mut entries = limits.entries.saturating_sub(shares.len());
    let heads = shares.iter().flat_map(|share| &share.messages).map(|held| publisher.size(&held.message));
    let mut bytes = limits.bytes.saturating_sub(heads.fold(0, usize::saturating_add));
    for _ in 1..group_batching {
        for Share { messages, lane } in &mut *shares {
            let Some(next) = lane.head() else { continue };
            let size = publisher.size(next);
            // an aggregate's next message may be of another type, and so go to another queue
            if entries == 0 || size > bytes || publisher.destination(next).as_ref() != Some(destination) {
                continue;
            }
            entries -= 1;
            bytes -= size;
            messages.extend(lane.take_head());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::super::lane::tests::held;
    use super::*;

    /// Messages of type `other` go elsewhere.
    struct ByType;

    impl Publisher for ByType {
        fn destination(&self, message: &Message) -> Option<Destination> {
            Some(Destination::new(&message.aggregate_type))
        }

        fn limits(&self, _destination: &Destination) -> Limits {
            Limits { entries: 10, bytes: 1 << 20 }
        }

        fn size(&self, message: &Message) -> usize {
            message.payload.len()
        }

        async fn publish(&self, _destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
            vec![Outcome::published(); messages.len()]
        }
    }

    fn lane(held: Vec<Held>) -> Lane {
        Lane::split(held, Instant::now() + Duration::from_mins(1)).pop().unwrap()
    }

    /// `length` messages of `size` bytes; ids 1, 2, 3 and so on after `base`.
    fn lane_of(base: i64, length: i64, size: usize) -> Lane {
        let messages = (1..=length).map(|nth| {
            let mut held = held(&format!("order-{base}"), base + nth);
            held.message.payload = "x".repeat(size);
            held
        });
        lane(messages.collect())
    }

    fn filled(lanes: Vec<Lane>, group_batching: usize, limits: Limits) -> Vec<Vec<i64>> {
        let mut shares: Vec<_> = lanes.into_iter().map(Share::of_head).collect();
        fill(&mut shares, group_batching, limits, &Destination::new("order"), &ByType);
        shares.iter().map(|share| share.messages.iter().map(|held| held.message.id).collect()).collect()
    }

    fn limits(entries: usize, bytes: usize) -> Limits {
        Limits { entries, bytes }
    }

    #[tokio::test]
    async fn strict_a_lane_has_its_head_and_no_more() {
        let lanes = vec![lane_of(0, 5, 1), lane_of(10, 5, 1)];
        assert_eq!(filled(lanes, 1, limits(10, 100)), [[1], [11]]);
    }

    #[tokio::test]
    async fn second_messages_of_all_lanes_go_before_the_third_of_any() {
        let lanes = || vec![lane_of(0, 5, 1), lane_of(10, 1, 1), lane_of(20, 5, 1)];
        assert_eq!(filled(lanes(), 10, limits(4, 100)), [vec![1, 2], vec![11], vec![21]]);
        assert_eq!(filled(lanes(), 10, limits(5, 100)), [vec![1, 2], vec![11], vec![21, 22]]);
        assert_eq!(filled(lanes(), 10, limits(6, 100)), [vec![1, 2, 3], vec![11], vec![21, 22]]);
    }

    #[tokio::test]
    async fn a_lane_has_at_most_as_many_as_asked_for_and_as_it_has() {
        let lanes = || vec![lane_of(0, 9, 1), lane_of(10, 2, 1)];
        assert_eq!(filled(lanes(), 3, limits(10, 100)), [vec![1, 2, 3], vec![11, 12]]);
        assert_eq!(filled(lanes(), 10, limits(100, 100)), [(1..=9).collect(), vec![11, 12]]);
    }

    #[tokio::test]
    async fn the_bytes_of_the_heads_and_of_everything_after_them_count() {
        let lanes = || vec![lane_of(0, 5, 10), lane_of(10, 5, 3)];
        assert_eq!(filled(lanes(), 10, limits(10, 12)), [[1], [11]], "the heads alone are over the limit");
        assert_eq!(filled(lanes(), 2, limits(10, 16)), [vec![1], vec![11, 12]], "what does not fit lets others fit");
        assert_eq!(filled(lanes(), 2, limits(10, 26)), [vec![1, 2], vec![11, 12]], "the limit itself fits");
        assert_eq!(filled(lanes(), 3, limits(10, 31)), [vec![1, 2], vec![11, 12, 13]]);
    }

    #[tokio::test]
    async fn shares_go_side_by_side_and_each_meets_its_own_answers() {
        let mut shares: Vec<_> = [lane_of(0, 3, 1), lane_of(10, 1, 1), lane_of(20, 2, 1)].map(Share::of_head).into();
        fill(&mut shares, 2, limits(10, 100), &Destination::new("order"), &ByType);
        let mut request = Vec::new();
        let tails: Vec<_> = shares.into_iter().map(|share| share.depart(&mut request)).collect();
        assert_eq!(request.iter().map(|message| message.id).collect::<Vec<_>>(), [1, 2, 11, 21, 22]);
        let mut answers = request.into_iter().map(|message| {
            let error = message.id.to_string();
            (message, Outcome::Backoff { error })
        });
        let met = tails.into_iter().map(|tail| {
            let (tried, lane) = tail.meet(&mut answers);
            let ids: Vec<_> = tried.iter().map(|tried| tried.message.id).collect();
            for Tried { message, outcome, .. } in tried {
                assert_eq!(outcome, Outcome::Backoff { error: message.id.to_string() });
            }
            (ids, lane.into_untried().map(|held| held.message.id).collect::<Vec<_>>())
        });
        assert_eq!(met.collect::<Vec<_>>(), [(vec![1, 2], vec![3]), (vec![11], vec![]), (vec![21, 22], vec![])]);
    }

    #[tokio::test]
    async fn a_message_for_another_destination_ends_the_share_of_its_lane() {
        let mut mixed = vec![held("order-1", 1), held("order-1", 2), held("order-1", 3), held("order-1", 4)];
        mixed[2].message.aggregate_type = "other".into();
        assert_eq!(filled(vec![lane(mixed)], 10, limits(10, 100)), [[1, 2]]);
    }
}
