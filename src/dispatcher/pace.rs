//! The pace of one destination: how many requests it gets at a time, and how far apart.
//!
//! Additive increase, multiplicative decrease, as in congestion control: a throttled request shrinks the width, each
//! answered one lets it grow. After an outage it begins with one request and doubles with every round of answers: whoever
//! comes back is not met by a wave. Where even one request at a time is throttled, there is a gap
//! before the next, which doubles and shrinks by a tenth: many dispatchers that share a limit come near it from below.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::jitter;

/// What a throttled request leaves of the width.
const SHRINK: f64 = 0.7;
/// Rounds of answers that add one request to the width. Sawteeth of a narrow width are short: with every round, a queue
/// that takes two requests at a time would refuse every third.
const ROUNDS: f64 = 8.0;
/// The first gap.
const FIRST_GAP: Duration = Duration::from_millis(5);
/// A shorter one is none.
const LEAST_GAP: Duration = Duration::from_millis(1);
/// What an answered request leaves of the gap.
const SHRINK_GAP: f64 = 0.9;
/// The longest gap: a limit that was lifted is noticed within this time.
const MAX_GAP: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Pace {
    /// Most requests in flight, 1 to `most`; the fraction is what has been earned of the next one.
    width: f64,
    most: f64,
    /// Up to here each answer adds a whole request; beyond, [`ROUNDS`] of answers add one.
    threshold: f64,
    gap: Duration,
    not_before: Instant,
    shrunk_at: Option<Instant>,
}

impl Pace {
    /// At its widest: who only just started has no reason to doubt.
    pub(super) fn new(most: u32, now: Instant) -> Self {
        let most = f64::from(most.max(1));
        Self { width: most, ..Self::after_an_outage(most as u32, now) }
    }

    /// One request, and soon more.
    pub(super) fn after_an_outage(most: u32, now: Instant) -> Self {
        let most = f64::from(most.max(1));
        Self { width: 1.0, most, threshold: most, gap: Duration::ZERO, not_before: now, shrunk_at: None }
    }

    /// Most requests in flight just now.
    pub(super) fn width(&self) -> usize {
        self.width as usize
    }

    /// No request starts before this.
    pub(super) const fn not_before(&self) -> Instant {
        self.not_before
    }

    /// A request was answered.
    pub(super) fn answered(&mut self, now: Instant) {
        if self.gap.is_zero() {
            let more = if self.width < self.threshold { 1.0 } else { 1.0 / (self.width * ROUNDS) };
            self.width = (self.width + more).min(self.most);
        } else {
            self.gap = self.gap.mul_f64(SHRINK_GAP);
            if self.gap < LEAST_GAP {
                self.gap = Duration::ZERO;
            }
            self.not_before = now + self.gap / 2 + jitter(self.gap / 2);
        }
    }

    /// A request that started at `started` was throttled. Those that were under way together count once.
    pub(super) fn throttled(&mut self, started: Instant, now: Instant) {
        if self.shrunk_at.is_some_and(|shrunk_at| started < shrunk_at) {
            return;
        }
        self.shrunk_at = Some(now);
        if self.width >= 2.0 {
            self.width = (self.width * SHRINK).max(1.0);
            self.threshold = self.width;
        } else {
            self.width = 1.0;
            self.threshold = 1.0;
            self.gap = (self.gap * 2).clamp(FIRST_GAP, MAX_GAP);
            self.not_before = now + self.gap / 2 + jitter(self.gap / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn after_an_outage_it_begins_with_one_request_and_each_answer_adds_one_up_to_the_most() {
        let now = Instant::now();
        assert_eq!(Pace::new(4, now).width(), 4);
        let mut pace = Pace::after_an_outage(4, now);
        let widths: Vec<_> = (0..6)
            .map(|_| {
                let width = pace.width();
                pace.answered(now);
                width
            })
            .collect();
        assert_eq!(widths, [1, 2, 3, 4, 4, 4]);
    }

    // C20
    #[tokio::test]
    async fn a_throttled_request_shrinks_the_width_and_it_grows_back_by_one_in_eight_rounds() {
        let now = Instant::now();
        let mut pace = Pace::new(16, now);
        pace.throttled(now, now);
        assert_eq!(pace.width(), 11);
        let answers = (0..1_000)
            .take_while(|_| {
                pace.answered(now);
                pace.width() < 12
            })
            .count()
            + 1;
        assert!((8 * 9..=8 * 12).contains(&answers), "{answers} answers");
    }

    #[tokio::test]
    async fn requests_that_were_under_way_together_shrink_it_once() {
        let now = Instant::now();
        let mut pace = Pace::new(16, now);
        let later = now + Duration::from_millis(10);
        (0..11).for_each(|_| pace.throttled(now, later));
        assert_eq!(pace.width(), 11);
        pace.throttled(later, later);
        assert_eq!(pace.width(), 7);
    }

    // C20
    #[tokio::test]
    async fn where_one_request_at_a_time_is_throttled_gaps_double_to_five_seconds_and_shrink_by_a_tenth_with_each_answer()
     {
        let mut now = Instant::now();
        let mut pace = Pace::after_an_outage(16, now);
        let mut gaps = Vec::new();
        for _ in 0..12 {
            pace.throttled(now, now);
            assert!(pace.not_before() <= now + pace.gap && pace.width() == 1);
            gaps.push(pace.gap.as_millis());
            now += Duration::from_secs(6);
        }
        assert_eq!(gaps, [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 5_000, 5_000]);
        let answers = (0..1_000)
            .take_while(|_| {
                pace.answered(now);
                !pace.gap.is_zero()
            })
            .count()
            + 1;
        assert_eq!((answers, pace.width()), (81, 1));
        (0..12).for_each(|_| pace.answered(now));
        assert_eq!(pace.width(), 2);
    }
}
