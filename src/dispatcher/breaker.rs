//! The breaker of one destination. Pure: it is told the time.
//!
//! ```text
//!            nothing gets through                  pause is over
//! closed ---------------------------> open ---------------------------> half open
//!    ^                                  ^                                  |   |
//!    |                                  +------- the probe failed ---------+   |
//!    +------------------------ the probe was answered -------------------------+
//! ```
//!
//! Open, nothing is claimed for the destination and nothing is sent: what was claimed is handed back, attempts
//! refunded (P7). Half open, some of it is claimed and one message is sent. The pause is drawn with full jitter from a
//! ceiling that doubles with each failed probe.
//!
//! It opens only when nothing got through since the failed request was sent: one failure among successes is not an
//! outage. For a timeout, which is told late, nothing in the second half of its wait.
//!
//! Its state is the process's own: a restarted dispatcher begins closed, and is back where it was after the first request
//! failed.

use tokio::time::Instant;

use super::pace::Pace;
use crate::backoff::Backoff;
use crate::outcome::Trouble;

/// What came of a request, as far as it speaks of the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Landing {
    /// It took a message, or refused one for what is in it.
    Answered,
    /// It took none.
    Failed(Trouble),
    /// Nothing can be said.
    Mute,
}

/// What a landing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The destination is down from here on: hand back what waits for it.
    Opened,
    /// The probe failed: the same, and it has been down before.
    StaysOpen,
    /// It is up again.
    Closed,
}

/// What may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Up to so many requests in flight.
    Up(usize),
    /// Nothing before this.
    Later(Instant),
    /// One message, to see whether it gets through.
    Probe,
    /// Nothing.
    Shut,
}

#[derive(Debug)]
enum State {
    Closed,
    Open {
        until: Instant,
        probes: u32,
    },
    /// `candidates_until`: something was claimed to probe with. Nothing more is, until it must have been sent or
    /// handed back.
    HalfOpen {
        probes: u32,
        candidates_until: Option<Instant>,
        is_probing: bool,
    },
}

#[derive(Debug)]
pub(super) struct Breaker {
    state: State,
    pause: Backoff,
    most: u32,
    pace: Pace,
    last_answer: Option<Instant>,
    down_since: Option<Instant>,
}

impl Breaker {
    pub(super) fn new(pause: Backoff, most: u32, now: Instant) -> Self {
        let pace = Pace::new(most, now);
        Self { state: State::Closed, pause, most, pace, last_answer: None, down_since: None }
    }

    /// Whether messages for the destination may be claimed. Turns half open when the pause is over.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        if let State::Open { until, probes } = self.state
            && now >= until
        {
            self.state = State::HalfOpen { probes, candidates_until: None, is_probing: false };
        }
        match self.state {
            State::Closed => true,
            State::Open { .. } => false,
            State::HalfOpen { candidates_until, .. } => candidates_until.is_none_or(|until| now >= until),
        }
    }

    /// When that may change by itself.
    pub(super) const fn admits_again_at(&self) -> Option<Instant> {
        match self.state {
            State::Closed => None,
            State::Open { until, .. } => Some(until),
            State::HalfOpen { candidates_until, .. } => candidates_until,
        }
    }

    /// Whether a probe is wanted and nothing to send is at hand.
    pub(super) const fn wants_candidates(&self) -> bool {
        matches!(self.state, State::HalfOpen { candidates_until: None, .. })
    }

    /// Messages for the destination were claimed, to be sent or handed back by `until`.
    pub(super) const fn claimed(&mut self, until: Instant) {
        if let State::HalfOpen { candidates_until, .. } = &mut self.state {
            *candidates_until = Some(until);
        }
    }

    pub(super) fn gate(&self, now: Instant) -> Gate {
        match self.state {
            State::Closed if now < self.pace.not_before() => Gate::Later(self.pace.not_before()),
            State::Closed => Gate::Up(self.pace.width()),
            State::HalfOpen { is_probing: false, .. } => Gate::Probe,
            State::HalfOpen { .. } | State::Open { .. } => Gate::Shut,
        }
    }

    /// Whether what was claimed for the destination is to be handed back.
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    pub(super) const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Most requests in flight just now.
    pub(super) fn width(&self) -> usize {
        match self.state {
            State::Closed => self.pace.width(),
            State::HalfOpen { .. } => 1,
            State::Open { .. } => 0,
        }
    }

    /// A request leaves; whether it is the probe.
    pub(super) const fn departs(&mut self) -> bool {
        if let State::HalfOpen { is_probing, .. } = &mut self.state {
            *is_probing = true;
            return true;
        }
        false
    }

    /// Since when nothing gets through.
    pub(super) const fn down_since(&self) -> Option<Instant> {
        self.down_since
    }

    /// A request came back that left at `started`.
    pub(super) fn lands(&mut self, landing: Landing, is_probe: bool, started: Instant, now: Instant) -> Option<Turn> {
        match landing {
            Landing::Answered => self.answered(now),
            Landing::Failed(Trouble::Throttled) => {
                // it is there, and wants fewer requests
                let turn = self.closes(now);
                self.pace.throttled(started, now);
                turn
            }
            Landing::Failed(trouble) => self.failed(trouble, is_probe, started, now),
            Landing::Mute => {
                if is_probe && let State::HalfOpen { candidates_until, is_probing, .. } = &mut self.state {
                    (*candidates_until, *is_probing) = (None, false);
                }
                None
            }
        }
    }

    fn answered(&mut self, now: Instant) -> Option<Turn> {
        self.last_answer = Some(now);
        let turn = self.closes(now);
        self.pace.answered(now);
        turn
    }

    fn closes(&mut self, now: Instant) -> Option<Turn> {
        if self.is_closed() {
            return None;
        }
        self.state = State::Closed;
        self.down_since = None;
        self.pace = Pace::after_an_outage(self.most, now);
        Some(Turn::Closed)
    }

    fn failed(&mut self, trouble: Trouble, is_probe: bool, started: Instant, now: Instant) -> Option<Turn> {
        let (probes, turn) = match self.state {
            State::Closed if self.got_through(trouble, started, now) => return None,
            State::Closed => (0, Turn::Opened),
            State::HalfOpen { probes, .. } if is_probe => (probes.saturating_add(1), Turn::StaysOpen),
            // sent before it opened
            State::HalfOpen { .. } | State::Open { .. } => return None,
        };
        self.down_since.get_or_insert(started);
        self.state = State::Open { until: now + self.pause.full_jitter(probes), probes };
        Some(turn)
    }

    /// Whether something got through while the failed request was under way.
    fn got_through(&self, trouble: Trouble, started: Instant, now: Instant) -> bool {
        let since = if trouble == Trouble::Timeout { started + (now - started) / 2 } else { started };
        self.last_answer.is_some_and(|answer| answer >= since)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PAUSE: Backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
    const SECOND: Duration = Duration::from_secs(1);
    const DOWN: Landing = Landing::Failed(Trouble::Network);

    fn breaker(now: Instant) -> Breaker {
        Breaker::new(PAUSE, 16, now)
    }

    /// Open, and the time at which it is not any more at the latest.
    fn opened(now: Instant) -> Breaker {
        let mut breaker = breaker(now);
        assert_eq!(breaker.lands(DOWN, false, now, now), Some(Turn::Opened));
        breaker
    }

    /// Fails its next probe; the pause drawn for it.
    fn fail_probe(breaker: &mut Breaker, now: Instant) -> Duration {
        assert!(breaker.admits(now));
        breaker.claimed(now + 60 * SECOND);
        assert_eq!(breaker.gate(now), Gate::Probe);
        assert!(breaker.departs());
        assert_eq!(breaker.gate(now), Gate::Shut, "one probe at a time");
        assert!(!breaker.admits(now), "nothing more is claimed meanwhile");
        assert_eq!(breaker.lands(DOWN, true, now, now), Some(Turn::StaysOpen));
        breaker.admits_again_at().unwrap() - now
    }

    // P7
    #[tokio::test]
    async fn it_opens_when_nothing_got_through_since_the_failed_request_was_sent() {
        let start = Instant::now();
        for trouble in Trouble::ALL.into_iter().filter(|trouble| *trouble != Trouble::Throttled) {
            let mut breaker = breaker(start);
            breaker.lands(Landing::Answered, false, start, start + SECOND);
            let sent = start + 2 * SECOND;
            assert_eq!(breaker.lands(Landing::Failed(trouble), false, sent, sent + SECOND), Some(Turn::Opened));
            assert!(breaker.is_open() && breaker.gate(sent + SECOND) == Gate::Shut);
        }
    }

    #[tokio::test]
    async fn a_failure_among_successes_does_not_open_it() {
        let start = Instant::now();
        let mut breaker = breaker(start);
        breaker.lands(Landing::Answered, false, start, start + 6 * SECOND);
        assert_eq!(breaker.lands(DOWN, false, start + SECOND, start + 9 * SECOND), None);
        let late = Landing::Failed(Trouble::Timeout);
        assert_eq!(breaker.lands(late, false, start + SECOND, start + 11 * SECOND), None);
        assert_eq!(breaker.lands(late, false, start + 3 * SECOND, start + 13 * SECOND), Some(Turn::Opened));
    }

    #[tokio::test]
    async fn throttling_never_opens_it() {
        let now = Instant::now();
        let mut breaker = breaker(now);
        for nth in 0..100 {
            let now = now + nth * SECOND;
            assert_eq!(breaker.lands(Landing::Failed(Trouble::Throttled), false, now, now), None);
        }
        assert!(breaker.is_closed());
    }

    #[tokio::test]
    async fn pauses_double_with_each_failed_probe_up_to_the_cap_with_full_jitter() {
        let (mut longest, mut shortest) = ([Duration::ZERO; 8], [PAUSE.cap; 8]);
        for _ in 0..300 {
            let mut now = Instant::now();
            let mut breaker = opened(now);
            for nth in 0..8 {
                now += PAUSE.cap;
                let pause = fail_probe(&mut breaker, now);
                longest[nth] = longest[nth].max(pause);
                shortest[nth] = shortest[nth].min(pause);
            }
        }
        for (nth, (longest, shortest)) in longest.into_iter().zip(shortest).enumerate() {
            let ceiling = PAUSE.ceiling(nth as u32 + 1);
            assert!(longest <= ceiling && longest > ceiling / 2 && shortest < ceiling / 2, "{nth}: {longest:?}");
        }
    }

    #[tokio::test]
    async fn it_claims_nothing_until_the_pause_is_over_and_then_something_to_probe_with_once() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let until = breaker.admits_again_at().unwrap();
        assert!(!breaker.admits(until - Duration::from_nanos(1)) || until == now);
        assert!(breaker.admits(until) && breaker.wants_candidates());
        assert!(breaker.admits(until), "nothing was found");
        breaker.claimed(until + SECOND);
        assert!(!breaker.admits(until) && !breaker.wants_candidates());
        assert!(breaker.admits(until + SECOND), "what was found was handed back unsent");
    }

    #[tokio::test]
    async fn an_answered_probe_closes_it_with_one_request_at_a_time() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let now = now + PAUSE.cap;
        assert!(breaker.admits(now) && breaker.departs());
        assert_eq!(breaker.lands(Landing::Answered, true, now, now), Some(Turn::Closed));
        assert_eq!((breaker.gate(now), breaker.down_since()), (Gate::Up(2), None));
    }

    #[tokio::test]
    async fn an_answer_to_a_request_from_before_closes_it_and_a_failure_of_one_changes_nothing() {
        let now = Instant::now();
        let mut breaker = opened(now);
        assert_eq!(breaker.lands(DOWN, false, now, now + SECOND), None);
        assert_eq!(breaker.lands(Landing::Answered, false, now, now + SECOND), Some(Turn::Closed));
    }

    #[tokio::test]
    async fn a_probe_that_says_nothing_of_the_destination_is_followed_by_another() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let now = now + PAUSE.cap;
        assert!(breaker.admits(now));
        breaker.claimed(now + SECOND);
        assert!(breaker.departs());
        assert_eq!(breaker.lands(Landing::Mute, true, now, now), None);
        assert_eq!(breaker.gate(now), Gate::Probe);
        assert!(breaker.admits(now) && breaker.wants_candidates());
    }

    #[tokio::test]
    async fn it_tells_since_when_nothing_gets_through_over_all_probes() {
        let now = Instant::now();
        let mut breaker = opened(now);
        fail_probe(&mut breaker, now + PAUSE.cap);
        assert_eq!(breaker.down_since(), Some(now));
    }
}
