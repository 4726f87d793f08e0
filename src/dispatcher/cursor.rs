//! The cursor: where a claim looks, and at how much.
//!
//! Due rows are looked at in (`available_at`, id) order, a window at a time, and a claim goes on where the one before it
//! ended. So nothing is stepped over twice: not what waits, and not the dead index entries of what was finished, which an
//! old snapshot anywhere in the database keeps for hours. What becomes claimable is written with `available_at` as of now,
//! in front of every cursor.
//!
//! A row can still turn up behind it: its transaction took long to commit, or another dispatcher had it locked just
//! then. Therefore the cursor rewinds to the front at least every second. A pass from there that takes long is repeated
//! less often, so that rewinding takes no more than a tenth of the time; but at least every ten seconds, since leases that
//! ran out are found only there, and what took long may have been a database that stood still.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::{Position, Window};

/// Time between two looks from the front, unless they take long.
const REWIND_INTERVAL: Duration = Duration::from_secs(1);

/// How many times longer than the look from the front lasted the next one waits.
const REWIND_SHARE: u32 = 10;

/// Longest time between two looks from the front.
const MAX_REWIND_INTERVAL: Duration = Duration::from_secs(10);

/// Most due rows one claim looks at. Measured: a row looked at costs about 1 us, so this adds a millisecond.
const MAX_WINDOW: u32 = 1_000;

/// Most aggregates one claim should see: each costs a probe, about 5 us.
const MAX_AGGREGATES: u32 = 250;

/// Looks at due rows front to back, and from the front again.
#[derive(Debug)]
pub(super) struct Cursor {
    from: Option<Position>,
    window: u32,
    min_window: u32,
    /// A look from the front goes on until it is here, where the one before it had got to.
    catching_up: Option<CatchUp>,
    rewind_at: Instant,
}

#[derive(Debug)]
struct CatchUp {
    to: Option<Position>,
    took: Duration,
}

impl Cursor {
    /// At the front. A window is at least `min_window` rows: a batch, which is enough when no row waits behind another.
    pub(super) fn new(min_window: u32, now: Instant) -> Self {
        let mut cursor = Self { from: None, window: min_window, min_window, catching_up: None, rewind_at: now };
        cursor.rewind();
        cursor
    }

    /// Where the next claim begins (`None`: at the front) and how many rows it looks at.
    pub(super) fn next(&mut self, now: Instant) -> (Option<Position>, u32) {
        if now >= self.rewind_at && self.catching_up.is_none() {
            self.rewind();
        }
        (self.from, self.window)
    }

    /// The next claim begins at the front, and looks for leases that ran out.
    pub(super) fn rewind(&mut self) {
        self.catching_up = Some(CatchUp { to: self.from.take(), took: Duration::ZERO });
    }

    /// Takes in what a claim saw; `was_filled`: it took as much as it was asked to.
    pub(super) fn saw(&mut self, window: &Window, was_filled: bool, took: Duration, now: Instant) {
        self.from = Some(window.reached);
        if let Some(catch_up) = &mut self.catching_up {
            catch_up.took += took;
            if window.ended || catch_up.to.is_none_or(|to| window.reached >= to) {
                self.rewind_at = now + (catch_up.took * REWIND_SHARE).clamp(REWIND_INTERVAL, MAX_REWIND_INTERVAL);
                self.catching_up = None;
            }
        }
        // Few heads among many rows: look at more. Many aggregates, each a probe, or enough heads: at fewer.
        self.window = if was_filled || window.aggregates > MAX_AGGREGATES {
            self.window / 2
        } else if window.ended || window.aggregates > MAX_AGGREGATES / 2 {
            self.window
        } else {
            self.window.saturating_mul(2)
        }
        .clamp(self.min_window, MAX_WINDOW.max(self.min_window));
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(seconds: i64) -> Position {
        Position::new(DateTime::from_timestamp(seconds, 0).unwrap(), 7)
    }

    /// A look that got to `reached` and saw 10 aggregates; there is more behind it.
    fn saw(reached: i64) -> Window {
        Window { reached: at(reached), ended: false, aggregates: 10, waiting: 0 }
    }

    /// A look that got to the end.
    fn ended(reached: i64) -> Window {
        Window { ended: true, ..saw(reached) }
    }

    #[test]
    fn it_begins_at_the_front_with_a_batch_and_goes_on_where_the_last_claim_ended() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        assert_eq!(cursor.next(now), (None, 100));
        cursor.saw(&saw(1), true, MS, now);
        assert_eq!(cursor.next(now), (Some(at(1)), 100));
        cursor.saw(&saw(2), true, MS, now);
        assert_eq!(cursor.next(now), (Some(at(2)), 100));
    }

    #[test]
    fn it_rewinds_a_second_after_a_look_from_the_front_was_over() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&ended(1), false, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL - MS).0, Some(at(1)));
        assert_eq!(cursor.next(now + REWIND_INTERVAL).0, None);
        assert_eq!(cursor.next(now + REWIND_INTERVAL + MS).0, None, "until a claim was made there");
    }

    #[test]
    fn a_look_from_the_front_is_over_when_it_is_where_the_one_before_it_had_got_to() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(5), true, MS, now);
        let rewound = now + REWIND_INTERVAL;
        assert_eq!(cursor.next(rewound).0, None);
        cursor.saw(&saw(3), true, MS, rewound);
        let late = rewound + 5 * REWIND_INTERVAL;
        assert_eq!(cursor.next(late).0, Some(at(3)), "it is not interrupted, however long it takes");
        cursor.saw(&saw(4), true, MS, late);
        assert_eq!(cursor.next(late).0, Some(at(4)));
        cursor.saw(&saw(5), true, MS, late);
        assert_eq!(cursor.next(late + REWIND_INTERVAL - MS).0, Some(at(5)));
        assert_eq!(cursor.next(late + REWIND_INTERVAL).0, None);
    }

    #[test]
    fn a_look_that_came_to_the_end_before_is_over_too() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(5), true, MS, now);
        cursor.rewind();
        cursor.saw(&ended(3), false, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).0, None);
    }

    #[test]
    fn looks_from_the_front_take_a_tenth_of_the_time() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(5), true, 100 * MS, now);
        assert_eq!(cursor.next(now + 1_000 * MS).0, None);
        cursor.saw(&saw(3), true, 150 * MS, now);
        cursor.saw(&saw(6), true, 200 * MS, now);
        assert_eq!(cursor.next(now + 3_499 * MS).0, Some(at(6)), "150 and 200 ms, ten times");
        assert_eq!(cursor.next(now + 3_500 * MS).0, None);
        // what goes on behind it is not counted
        cursor.saw(&ended(9), false, MS, now);
        cursor.saw(&saw(10), true, 900 * MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).0, None);
    }

    #[test]
    fn a_look_from_the_front_that_took_however_long_is_repeated_after_ten_seconds() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&ended(5), false, 60_000 * MS, now);
        assert_eq!(cursor.next(now + 9_999 * MS).0, Some(at(5)));
        assert_eq!(cursor.next(now + 10_000 * MS).0, None);
    }

    #[test]
    fn the_first_look_is_over_with_its_first_claim() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(1), true, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL - MS).0, Some(at(1)));
        assert_eq!(cursor.next(now + REWIND_INTERVAL).0, None);
    }

    #[test]
    fn a_rewind_asked_for_begins_at_the_front_at_once_and_keeps_where_to_catch_up() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&ended(9), false, MS, now);
        cursor.rewind();
        assert_eq!(cursor.next(now).0, None);
        cursor.saw(&saw(8), true, MS, now);
        assert_eq!(cursor.next(now + 9 * REWIND_INTERVAL).0, Some(at(8)), "still catching up");
        cursor.saw(&saw(9), true, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).0, None);
    }

    /// Window sizes after each look.
    fn windows(min_window: u32, looks: &[(bool, Window)]) -> Vec<u32> {
        let now = Instant::now();
        let mut cursor = Cursor::new(min_window, now);
        looks
            .iter()
            .map(|(was_filled, window)| {
                cursor.saw(window, *was_filled, MS, now);
                cursor.next(now).1
            })
            .collect()
    }

    #[test]
    fn the_window_doubles_while_claims_find_few_heads_and_halves_when_they_find_enough() {
        let few = || (false, saw(1));
        let filled = || (true, saw(1));
        let looks = [few(), few(), few(), few(), few(), filled(), filled(), filled(), filled(), filled()];
        assert_eq!(windows(100, &looks), [200, 400, 800, 1_000, 1_000, 500, 250, 125, 100, 100]);
    }

    #[test]
    fn the_window_halves_when_it_has_more_than_enough_aggregates_and_stays_between() {
        let of = |aggregates| (false, Window { aggregates, ..saw(1) });
        let looks = [of(125), of(126), of(250), of(251), of(125), of(126)];
        assert_eq!(windows(100, &looks), [200, 200, 200, 100, 200, 200]);
    }

    #[test]
    fn the_window_stays_when_it_came_to_the_end() {
        assert_eq!(windows(100, &[(false, saw(1)), (false, ended(2)), (false, ended(3))]), [200, 200, 200]);
    }

    #[test]
    fn a_batch_larger_than_any_window_is_looked_at_whole() {
        assert_eq!(windows(3_000, &[(false, saw(1)), (true, saw(2))]), [3_000, 3_000]);
        assert_eq!(windows(u32::MAX, &[(false, saw(1))]), [u32::MAX]);
    }
}
