//! Lanes that wait for a request to their destination.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::lane::Lane;
use super::share::{Share, fill};
use crate::publisher::{Destination, Publisher};

/// One queue of lanes a destination.
#[derive(Debug, Default)]
pub(super) struct Ready {
    queues: Vec<Queue>,
    /// Which destination is served first next time, so that a busy one cannot starve the others.
    turn: usize,
}

#[derive(Debug)]
struct Queue {
    destination: Destination,
    lanes: VecDeque<Lane>,
    in_flight: usize,
}

/// What shares one request: of each lane its head, and what group batching adds.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) destination: Destination,
    pub(super) shares: Vec<Share>,
}

impl Ready {
    /// Puts a lane behind the others of its destination.
    pub(super) fn push(&mut self, destination: &Destination, lane: Lane) {
        self.queue(destination).lanes.push_back(lane);
    }

    /// Takes the next request, if a destination has lanes ready and fewer than `concurrency` requests in flight.
    ///
    /// Heads go first. Only what they leave free holds more of the same lanes, up to `group_batching` of each.
    pub(super) fn take(
        &mut self,
        publisher: &impl Publisher,
        concurrency: usize,
        group_batching: usize,
    ) -> Option<Batch> {
        let count = self.queues.len();
        let at = (0..count)
            .map(|step| (self.turn + step) % count)
            .find(|at| !self.queues[*at].lanes.is_empty() && self.queues[*at].in_flight < concurrency)?;
        self.turn = at + 1;
        let queue = &mut self.queues[at];
        let limits = publisher.limits(&queue.destination);
        let sizes = queue.lanes.iter().map(|lane| lane.head().map_or(0, |head| publisher.size(head)));
        let fitting = limits.fit(sizes);
        queue.in_flight += 1;
        let mut shares: Vec<_> = queue.lanes.drain(..fitting).map(Share::of_head).collect();
        fill(&mut shares, group_batching, limits, &queue.destination, publisher);
        Some(Batch { destination: queue.destination.clone(), shares })
    }

    /// A request to this destination has ended.
    pub(super) fn landed(&mut self, destination: &Destination) {
        self.queue(destination).in_flight -= 1;
    }

    /// Takes out every lane that could no longer finish a publish inside its lease.
    pub(super) fn take_too_late(&mut self, now: Instant) -> Vec<Lane> {
        let mut late = Vec::new();
        for queue in &mut self.queues {
            let (too_late, in_time): (Vec<_>, Vec<_>) = queue.lanes.drain(..).partition(|lane| lane.is_too_late(now));
            late.extend(too_late);
            queue.lanes.extend(in_time);
        }
        late
    }

    /// Takes out every lane.
    pub(super) fn take_all(&mut self) -> Vec<Lane> {
        self.queues.iter_mut().flat_map(|queue| queue.lanes.drain(..)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.lanes.is_empty())
    }

    fn queue(&mut self, destination: &Destination) -> &mut Queue {
        let at = self.queues.iter().position(|queue| queue.destination == *destination).unwrap_or_else(|| {
            self.queues.push(Queue { destination: destination.clone(), lanes: VecDeque::new(), in_flight: 0 });
            self.queues.len() - 1
        });
        &mut self.queues[at]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::lane::tests::held;
    use super::*;
    use crate::publisher::RecordingPublisher;

    fn lane(id: i64) -> Lane {
        lane_until(id, Instant::now() + Duration::from_mins(1))
    }

    /// Three messages, of ids 1, 2, 3 after `base`.
    fn lane_of_three(base: i64) -> Lane {
        let messages = (1..=3).map(|nth| held(&format!("order-{base}"), base + nth)).collect();
        Lane::split(messages, Instant::now() + Duration::from_mins(1)).pop().unwrap()
    }

    fn lane_until(id: i64, start_by: Instant) -> Lane {
        Lane::split(vec![held(&format!("order-{id}"), id)], start_by).pop().unwrap()
    }

    fn heads(lanes: &[Lane]) -> Vec<i64> {
        lanes.iter().map(|lane| lane.head().unwrap().id).collect()
    }

    fn take(ready: &mut Ready, concurrency: usize) -> Option<(String, Vec<i64>)> {
        take_up_to(ready, concurrency, 1)
    }

    fn take_up_to(ready: &mut Ready, concurrency: usize, group_batching: usize) -> Option<(String, Vec<i64>)> {
        let batch = ready.take(&RecordingPublisher::new(), concurrency, group_batching)?;
        let messages = batch.shares.iter().flat_map(|share| &share.messages);
        Some((batch.destination.to_string(), messages.map(|held| held.message.id).collect()))
    }

    #[tokio::test]
    async fn a_request_takes_the_lanes_that_wait_longest_up_to_its_limit() {
        let (queue, mut ready) = (Destination::new("q"), Ready::default());
        (1..=12).for_each(|id| ready.push(&queue, lane(id)));
        assert_eq!(take(&mut ready, 9), Some(("q".into(), (1..=10).collect())));
        assert_eq!(take(&mut ready, 9), Some(("q".into(), vec![11, 12])));
        assert_eq!(take(&mut ready, 9), None);
    }

    // P2
    #[tokio::test]
    async fn strict_a_request_holds_heads_only_although_it_has_room() {
        let (queue, mut ready) = (Destination::new("q"), Ready::default());
        for base in [0, 10] {
            ready.push(&queue, lane_of_three(base));
        }
        assert_eq!(take(&mut ready, 9), Some(("q".into(), vec![1, 11])));
        assert_eq!(take(&mut ready, 9), None, "a lane in flight is not ready");
    }

    #[tokio::test]
    async fn with_group_batching_every_head_that_fits_goes_before_the_second_message_of_any_lane() {
        let (queue, mut ready) = (Destination::new("recording"), Ready::default());
        (0..9).for_each(|lane| ready.push(&queue, lane_of_three(lane * 10)));
        assert_eq!(
            take_up_to(&mut ready, 9, 3),
            Some(("recording".into(), vec![1, 2, 11, 21, 31, 41, 51, 61, 71, 81]))
        );
        assert_eq!(take_up_to(&mut ready, 9, 3), None, "a lane in flight is not ready");
    }

    #[tokio::test]
    async fn with_group_batching_the_messages_of_a_lane_are_side_by_side_in_its_order() {
        let (queue, mut ready) = (Destination::new("recording"), Ready::default());
        for base in [0, 10] {
            ready.push(&queue, lane_of_three(base));
        }
        assert_eq!(take_up_to(&mut ready, 9, 2), Some(("recording".into(), vec![1, 2, 11, 12])));
    }

    #[tokio::test]
    async fn a_full_destination_waits_and_the_other_one_flows() {
        let (slow, fast, mut ready) = (Destination::new("slow"), Destination::new("fast"), Ready::default());
        (1..=30).for_each(|id| ready.push(&slow, lane(id)));
        (31..=50).for_each(|id| ready.push(&fast, lane(id)));
        let served: Vec<_> = std::iter::from_fn(|| take(&mut ready, 2).map(|(name, _)| name)).collect();
        assert_eq!(served, ["slow", "fast", "slow", "fast"]);
        ready.landed(&slow);
        assert_eq!(take(&mut ready, 2), Some(("slow".into(), (21..=30).collect())));
    }

    #[tokio::test]
    async fn a_lane_whose_lease_is_nearly_over_is_taken_out_and_the_order_of_the_rest_stays() {
        let (queue, mut ready, now) = (Destination::new("q"), Ready::default(), Instant::now());
        for (id, seconds) in [(1, 9), (2, 1), (3, 9)] {
            ready.push(&queue, lane_until(id, now + Duration::from_secs(seconds)));
        }
        assert_eq!(heads(&ready.take_too_late(now + Duration::from_secs(2))), [2]);
        assert_eq!(take(&mut ready, 1), Some(("q".into(), vec![1, 3])));
    }
}
