//! Lanes that wait for a request to their destination.

use std::collections::VecDeque;

use rand::RngExt as _;
use tokio::time::Instant;

use super::breaker::Gate;
use super::lane::Lane;
use super::share::{Share, fill};
use super::suspects::Suspects;
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
    /// Puts a lane that waited before in front of the others of its destination.
    pub(super) fn push_front(&mut self, destination: &Destination, lane: Lane) {
        self.queue(destination).lanes.push_front(lane);
    }

    /// Puts a lane behind the others of its destination.
    pub(super) fn push(&mut self, destination: &Destination, lane: Lane) {
        self.queue(destination).lanes.push_back(lane);
    }

    /// Takes the next request, if a destination has lanes ready and its gate lets one pass.
    ///
    /// Heads go first. Only what they leave free holds more of the same lanes, up to `group_batching` of each. A suspect
    /// goes by itself. A probe is one message of any lane: drawn, so that a message that fails by itself cannot keep its
    /// destination down.
    pub(super) fn take(
        &mut self,
        publisher: &impl Publisher,
        gate: impl Fn(&Destination) -> Gate,
        group_batching: usize,
        suspects: &Suspects,
    ) -> Option<Batch> {
        let count = self.queues.len();
        let (at, gate) = (0..count).map(|step| (self.turn + step) % count).find_map(|at| {
            let queue = &self.queues[at];
            let gate = if queue.lanes.is_empty() { Gate::Shut } else { gate(&queue.destination) };
            match gate {
                Gate::Up(width) if queue.in_flight < width => Some((at, gate)),
                Gate::Probe => Some((at, gate)),
                Gate::Up(_) | Gate::Later(_) | Gate::Shut => None,
            }
        })?;
        self.turn = at + 1;
        let queue = &mut self.queues[at];
        queue.in_flight += 1;
        let destination = queue.destination.clone();
        if gate == Gate::Probe {
            let drawn = rand::rng().random_range(0..queue.lanes.len());
            let shares = queue.lanes.remove(drawn).map(Share::of_head).into_iter().collect();
            return Some(Batch { destination, shares });
        }
        let limits = publisher.limits(&destination);
        let is_suspect =
            |lane: &Lane| !suspects.is_empty() && lane.head().is_some_and(|head| suspects.contains(head.id));
        if is_suspect(&queue.lanes[0]) {
            let shares = queue.lanes.pop_front().map(Share::of_head).into_iter().collect();
            return Some(Batch { destination, shares });
        }
        let company = queue.lanes.iter().take_while(|lane| !is_suspect(lane));
        let fitting = limits.fit(company.map(|lane| lane.head().map_or(0, |head| publisher.size(head))));
        let mut shares: Vec<_> = queue.lanes.drain(..fitting).map(Share::of_head).collect();
        fill(&mut shares, group_batching, limits, &destination, publisher);
        Some(Batch { destination, shares })
    }

    /// When a gate that is shut for now opens by itself and a lane waits behind it.
    pub(super) fn later(&self, gate: impl Fn(&Destination) -> Gate) -> Option<Instant> {
        let waiting = self.queues.iter().filter(|queue| !queue.lanes.is_empty());
        waiting
            .filter_map(|queue| match gate(&queue.destination) {
                Gate::Later(at) => Some(at),
                Gate::Up(_) | Gate::Probe | Gate::Shut => None,
            })
            .min()
    }

    /// Takes out every lane of a destination.
    pub(super) fn take_of(&mut self, destination: &Destination) -> Vec<Lane> {
        self.queue(destination).lanes.drain(..).collect()
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
        let up = |_: &Destination| Gate::Up(concurrency);
        let batch = ready.take(&RecordingPublisher::new(), up, group_batching, &Suspects::default())?;
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

    fn taken(ready: &mut Ready, gate: Gate, suspects: &Suspects) -> Option<Vec<i64>> {
        let batch = ready.take(&RecordingPublisher::new(), |_| gate, 3, suspects)?;
        Some(batch.shares.iter().flat_map(|share| &share.messages).map(|held| held.message.id).collect())
    }

    #[tokio::test]
    async fn a_probe_is_one_message_drawn_from_all_lanes() {
        let queue = Destination::new("recording");
        let mut drawn: Vec<_> = (0..200)
            .map(|_| {
                let mut ready = Ready::default();
                for base in [0, 10, 20] {
                    ready.push(&queue, lane_of_three(base));
                }
                taken(&mut ready, Gate::Probe, &Suspects::default()).unwrap()
            })
            .collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn, [[1], [11], [21]]);
    }

    #[tokio::test]
    async fn a_suspect_goes_by_itself_and_the_others_keep_each_other_company() {
        let (queue, mut ready, mut suspects) = (Destination::new("recording"), Ready::default(), Suspects::default());
        for base in [0, 10, 20, 30] {
            ready.push(&queue, lane_of_three(base));
        }
        let (now, counts) = (Instant::now(), super::super::suspects::Counts::default());
        suspects.hung(21, false, (now, counts), counts);
        let requests: Vec<_> = std::iter::from_fn(|| taken(&mut ready, Gate::Up(9), &suspects)).collect();
        assert_eq!(requests, [vec![1, 2, 3, 11, 12, 13], vec![21], vec![31, 32, 33]]);
    }

    #[tokio::test]
    async fn nothing_passes_a_gate_that_is_shut_or_opens_later() {
        let (queue, mut ready, now) = (Destination::new("recording"), Ready::default(), Instant::now());
        assert_eq!(ready.later(|_| Gate::Later(now)), None, "nothing waits");
        ready.push(&queue, lane(1));
        for gate in [Gate::Shut, Gate::Later(now), Gate::Up(0)] {
            assert_eq!(taken(&mut ready, gate, &Suspects::default()), None);
        }
        assert_eq!(ready.later(|_| Gate::Later(now)), Some(now));
        assert_eq!(ready.later(|_| Gate::Shut), None);
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
