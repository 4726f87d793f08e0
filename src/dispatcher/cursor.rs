//! The cursor: where a claim looks, and at how much.
//!
//! Due rows are looked at in (`available_at`, id) order, a window at a time, and a claim goes on where the one before it
//! ended. So nothing is stepped over twice: not what waits, and not the dead index entries of what was finished, which an
//! old snapshot anywhere in the database keeps for hours. What becomes claimable is written with `available_at` as of now,
//! at the *tail*. As long as the position is behind the tail, each claim looks at a window there, too: what becomes claimable
//! does not wait until a long backlog, of rows that wait perhaps, has been looked at.
//!
//! A row can still turn up behind the position: its transaction took long to commit, or another dispatcher had it locked
//! just then. Therefore the cursor rewinds to the front at least every second. A pass from there that takes long is
//! repeated less often, so that rewinding takes no more than a tenth of the time; but at least every ten seconds, since
//! leases that ran out are found only there, and what took long may have been a database that stood still.
//!
//! Dispatchers that begin at the front together look at the same rows, and each gets what the others left. One that
//! collides *jumps* ahead by a random number of rows, to where it is alone. The others get what it stepped over, or it
//! rewinds at the end.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

use crate::store::{Look, Position, Window};

/// Time between two looks from the front, unless they take long.
const REWIND_INTERVAL: Duration = Duration::from_secs(1);

/// How many times longer than the look from the front lasted the next one waits.
const REWIND_SHARE: u32 = 10;

/// Longest time between two looks from the front.
const MAX_REWIND_INTERVAL: Duration = Duration::from_secs(10);

/// Most due rows one claim looks at, and as many at the tail. Measured: a row looked at costs about 1 us, so this adds a
/// millisecond.
const MAX_WINDOW: u32 = 1_000;

/// Most aggregates one claim should see: each costs a probe, about 5 us.
const MAX_AGGREGATES: u32 = 250;

/// A claim has collided if this part of a batch was locked or claimed by others just then.
const COLLISION: u32 = 4;

/// Longest jump, in batches. Measured: a row stepped over costs about 0.2 us.
const MAX_JUMP: u32 = 64;

/// Looks at due rows front to back, and from the front again.
#[derive(Debug)]
pub(super) struct Cursor {
    from: Option<Position>,
    tail: Option<Position>,
    window: u32,
    min_window: u32,
    catching_up: Option<CatchUp>,
    rewind_at: Instant,
    jump: Jump,
}

/// A look from the front, until it is where the one before it had got to.
#[derive(Debug)]
struct CatchUp {
    to: Option<Position>,
    /// That was the tail. It has moved since, and was looked at all the while.
    to_tail: bool,
    took: Duration,
}

#[derive(Debug)]
struct Jump {
    /// Rows the next claim steps over.
    rows: u32,
    /// Longest jump just now, in batches: about as far as the backlog has been found to reach.
    reach: u32,
    /// A claim was filled since the last rewind. A dispatcher that finds little looks at everything.
    is_allowed: bool,
    /// Rows were stepped over since the last rewind.
    has_left_rows: bool,
}

impl Cursor {
    /// At the front. A window is at least `min_window` rows: a batch, which is enough when no row waits behind another.
    pub(super) fn new(min_window: u32, now: Instant) -> Self {
        let jump = Jump { rows: 0, reach: 1, is_allowed: false, has_left_rows: false };
        let mut cursor =
            Self { from: None, tail: None, window: min_window, min_window, catching_up: None, rewind_at: now, jump };
        cursor.rewind();
        cursor
    }

    /// What the next claim looks at.
    pub(super) fn next(&mut self, now: Instant) -> Look {
        if now >= self.rewind_at && self.catching_up.is_none() {
            self.rewind();
        }
        let tail_window = if self.has_backlog() { self.min_window } else { self.window.max(self.min_window) };
        Look { from: self.from, window: self.window, skip: self.jump.rows, tail: self.tail, tail_window }
    }

    /// The next claim begins at the front, and looks for leases that ran out.
    pub(super) fn rewind(&mut self) {
        let to_tail = !self.has_backlog();
        self.catching_up = Some(CatchUp { to: self.from.take(), to_tail, took: Duration::ZERO });
        self.jump = Jump { rows: 0, is_allowed: false, has_left_rows: false, ..self.jump };
    }

    /// Whether there is something to claim elsewhere: the next claim jumps, or begins at the front because of earlier jumps.
    pub(super) const fn goes_on_at_once(&self) -> bool {
        self.jump.rows > 0 || self.from.is_none()
    }

    /// Takes in what a claim saw; `was_filled`: it took as much as it was asked to.
    pub(super) fn saw(&mut self, window: &Window, was_filled: bool, took: Duration, now: Instant) {
        self.jump.saw(window, was_filled, self.from == Some(window.reached), self.min_window);
        let had_backlog = self.has_backlog();
        self.from = Some(window.reached);
        self.tail = Some(window.tail);
        if let Some(catch_up) = &mut self.catching_up {
            catch_up.took += took;
            if window.ended || catch_up.to.is_none_or(|to| window.reached >= to) {
                self.rewind_at = now + (catch_up.took * REWIND_SHARE).clamp(REWIND_INTERVAL, MAX_REWIND_INTERVAL);
                if catch_up.to_tail {
                    self.from = self.tail;
                }
                self.catching_up = None;
            }
        }
        if window.ended && self.jump.has_left_rows {
            self.rewind();
        }
        // A backlog of rows that wait must not cost the claims that the tail fills much.
        let wades = had_backlog && was_filled && window.waiting > self.window / 2;
        let least = if wades { self.min_window.div_ceil(4) } else { self.min_window };
        // Few heads among many rows: look at more. Many aggregates, each a probe, or enough heads: at fewer.
        self.window = if was_filled || window.aggregates > MAX_AGGREGATES {
            self.window / 2
        } else if window.ended || window.aggregates > MAX_AGGREGATES / 2 {
            self.window
        } else {
            self.window.saturating_mul(2)
        }
        .clamp(least, MAX_WINDOW.max(self.min_window));
    }

    fn has_backlog(&self) -> bool {
        self.from.is_none() || self.from != self.tail
    }
}

impl Jump {
    /// `stayed`: the position is where it was.
    fn saw(&mut self, window: &Window, was_filled: bool, stayed: bool, batch: u32) {
        if self.rows > 0 {
            self.has_left_rows |= !stayed;
            // twice as far the next time, unless there were not that many rows
            self.reach = if stayed { self.reach / 2 } else { self.reach.saturating_mul(2) }.clamp(1, MAX_JUMP);
        }
        self.is_allowed |= was_filled;
        let has_collided = window.contended.saturating_mul(COLLISION) >= batch.max(1);
        self.rows = if self.is_allowed && has_collided {
            rand::rng().random_range(1..=self.reach).saturating_mul(batch)
        } else {
            0
        };
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

    /// A look that got to `reached` in a backlog and saw 10 aggregates; there is more behind it.
    fn saw(reached: i64) -> Window {
        Window { reached: at(reached), tail: at(1_000), ended: false, aggregates: 10, waiting: 0, contended: 0 }
    }

    /// A look that got to the end.
    fn ended(reached: i64) -> Window {
        Window { tail: at(reached), ended: true, ..saw(reached) }
    }

    #[test]
    fn it_begins_at_the_front_with_a_batch_and_goes_on_where_the_last_claim_ended() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        assert_eq!(cursor.next(now), Look::from_the_front(100));
        cursor.saw(&saw(1), true, MS, now);
        assert_eq!(cursor.next(now), Look::after(&saw(1), 100));
        cursor.saw(&saw(2), true, MS, now);
        assert_eq!(cursor.next(now), Look::after(&saw(2), 100));
    }

    #[test]
    fn it_rewinds_a_second_after_a_look_from_the_front_was_over() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&ended(1), false, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL - MS).from, Some(at(1)));
        assert_eq!(cursor.next(now + REWIND_INTERVAL).from, None);
        assert_eq!(cursor.next(now + REWIND_INTERVAL + MS).from, None, "until a claim was made there");
    }

    #[test]
    fn a_look_from_the_front_is_over_when_it_is_where_the_one_before_it_had_got_to() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(5), true, MS, now);
        let rewound = now + REWIND_INTERVAL;
        assert_eq!(cursor.next(rewound).from, None);
        cursor.saw(&saw(3), true, MS, rewound);
        let late = rewound + 5 * REWIND_INTERVAL;
        assert_eq!(cursor.next(late).from, Some(at(3)), "it is not interrupted, however long it takes");
        cursor.saw(&saw(4), true, MS, late);
        assert_eq!(cursor.next(late).from, Some(at(4)));
        cursor.saw(&saw(5), true, MS, late);
        assert_eq!(cursor.next(late + REWIND_INTERVAL - MS).from, Some(at(5)));
        assert_eq!(cursor.next(late + REWIND_INTERVAL).from, None);
    }

    #[test]
    fn a_look_that_came_to_the_end_before_is_over_too() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(5), true, MS, now);
        cursor.rewind();
        cursor.saw(&ended(3), false, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).from, None);
    }

    #[test]
    fn looks_from_the_front_take_a_tenth_of_the_time() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(5), true, 100 * MS, now);
        assert_eq!(cursor.next(now + 1_000 * MS).from, None);
        cursor.saw(&saw(3), true, 150 * MS, now);
        cursor.saw(&saw(6), true, 200 * MS, now);
        assert_eq!(cursor.next(now + 3_499 * MS).from, Some(at(6)), "150 and 200 ms, ten times");
        assert_eq!(cursor.next(now + 3_500 * MS).from, None);
        // what goes on behind it is not counted
        cursor.saw(&ended(9), false, MS, now);
        cursor.saw(&saw(10), true, 900 * MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).from, None);
    }

    #[test]
    fn a_look_from_the_front_that_took_however_long_is_repeated_after_ten_seconds() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&ended(5), false, 60_000 * MS, now);
        assert_eq!(cursor.next(now + 9_999 * MS).from, Some(at(5)));
        assert_eq!(cursor.next(now + 10_000 * MS).from, None);
    }

    #[test]
    fn the_first_look_is_over_with_its_first_claim() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(1), true, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL - MS).from, Some(at(1)));
        assert_eq!(cursor.next(now + REWIND_INTERVAL).from, None);
    }

    #[test]
    fn a_rewind_asked_for_begins_at_the_front_at_once_and_keeps_where_to_catch_up() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&ended(9), false, MS, now);
        cursor.rewind();
        assert_eq!(cursor.next(now).from, None);
        cursor.saw(&saw(8), true, MS, now);
        assert_eq!(cursor.next(now + 9 * REWIND_INTERVAL).from, Some(at(8)), "still catching up");
        cursor.saw(&saw(9), true, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).from, None);
    }

    /// The tail was looked at all the while; so was what came after `to`.
    #[test]
    fn a_look_from_the_front_goes_on_at_the_tail_if_there_was_no_backlog_when_it_began() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&ended(9), false, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL), Look { tail: Some(at(9)), ..Look::from_the_front(100) });
        cursor.saw(&Window { tail: at(20), ..saw(8) }, true, MS, now);
        assert_eq!(cursor.next(now), Look { from: Some(at(8)), tail: Some(at(20)), ..Look::from_the_front(100) });
        cursor.saw(&Window { tail: at(30), ..saw(12) }, true, MS, now);
        assert_eq!(cursor.next(now), Look { from: Some(at(30)), tail: Some(at(30)), ..Look::from_the_front(100) });
    }

    #[test]
    fn a_look_from_the_front_goes_on_in_the_backlog_if_there_was_one() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(9), true, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).from, None);
        cursor.saw(&saw(8), true, MS, now);
        cursor.saw(&saw(12), true, MS, now);
        assert_eq!(cursor.next(now).from, Some(at(12)));
    }

    fn collided(reached: i64) -> Window {
        Window { contended: 25, ..saw(reached) }
    }

    #[test]
    fn it_jumps_when_it_collides_after_a_filled_claim_and_twice_as_far_the_next_time() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&collided(1), false, MS, now);
        assert!(!cursor.goes_on_at_once() && cursor.next(now).skip == 0, "no claim was filled yet");
        cursor.saw(&saw(2), true, MS, now);
        cursor.saw(&Window { contended: 24, ..saw(3) }, false, MS, now);
        assert_eq!(cursor.next(now).skip, 0, "not for less than a quarter of a batch");
        let mut longest = Vec::new();
        for reached in 4..404 {
            cursor.saw(&collided(reached), false, MS, now);
            assert!(cursor.goes_on_at_once() && cursor.next(now).skip.is_multiple_of(100));
            longest.push(cursor.next(now).skip);
        }
        assert_eq!(longest[0], 100);
        assert!(longest[1] <= 200 && longest[2] <= 400 && longest[3] <= 800);
        assert!(longest.iter().all(|skip| (100..=6_400).contains(skip)) && longest.iter().any(|skip| *skip > 3_200));
        cursor.saw(&saw(405), true, MS, now);
        assert_eq!(cursor.next(now).skip, 0);
    }

    #[test]
    fn it_jumps_half_as_far_after_there_were_not_so_many_rows() {
        let now = Instant::now();
        let mut jump = Jump { rows: 0, reach: 64, is_allowed: true, has_left_rows: false };
        for reach in [64, 32, 16, 8, 4, 2, 1, 1] {
            assert_eq!(jump.reach, reach);
            jump.rows = 100;
            jump.saw(&saw(1), false, true, 100);
        }
        assert!(!jump.has_left_rows);
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(1), true, MS, now);
        cursor.saw(&collided(2), false, MS, now);
        cursor.saw(&saw(2), false, MS, now);
        cursor.saw(&ended(2), false, MS, now);
        assert_eq!(cursor.next(now).from, Some(at(2)), "nothing was stepped over");
    }

    #[test]
    fn it_rewinds_at_the_end_when_it_has_stepped_over_rows_and_does_not_jump_until_a_claim_is_filled() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(1), true, MS, now);
        cursor.saw(&collided(2), false, MS, now);
        cursor.saw(&saw(5), true, MS, now);
        assert_eq!(cursor.next(now).from, Some(at(5)));
        cursor.saw(&ended(9), false, MS, now);
        assert!(cursor.goes_on_at_once() && cursor.next(now).from.is_none());
        cursor.saw(&collided(3), false, MS, now);
        assert_eq!((cursor.next(now).from, cursor.next(now).skip), (Some(at(3)), 0));
        cursor.saw(&ended(9), false, MS, now);
        assert_eq!(cursor.next(now).from, Some(at(9)));
    }

    /// Window sizes after each look.
    fn windows(min_window: u32, looks: &[(bool, Window)]) -> Vec<u32> {
        let now = Instant::now();
        let mut cursor = Cursor::new(min_window, now);
        looks
            .iter()
            .map(|(was_filled, window)| {
                cursor.saw(window, *was_filled, MS, now);
                cursor.next(now).window
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
    fn the_window_shrinks_to_a_quarter_of_a_batch_while_the_backlog_only_waits_and_the_tail_fills_claims() {
        let waiting = |was_filled, waiting| (was_filled, Window { waiting, ..saw(1) });
        let looks = [waiting(true, 100), waiting(true, 100), waiting(true, 26), waiting(true, 0), waiting(false, 100)];
        assert_eq!(windows(100, &looks), [50, 25, 25, 100, 200]);
        assert_eq!(windows(1, &[waiting(true, 1), waiting(true, 1)]), [1, 1]);
        // without a backlog it is the window of the tail itself
        let at_the_tail = Window { waiting: 100, tail: at(1), ..saw(1) };
        assert_eq!(windows(100, &[(true, at_the_tail), (true, at_the_tail)]), [50, 100]);
    }

    #[test]
    fn the_tail_is_looked_at_with_a_batch_beside_a_backlog_and_with_the_window_otherwise() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        assert_eq!(cursor.next(now).tail_window, 100);
        cursor.saw(&saw(1), false, MS, now);
        assert_eq!((cursor.next(now).window, cursor.next(now).tail_window), (200, 100));
        cursor.saw(&Window { tail: at(2), ..saw(2) }, false, MS, now);
        assert_eq!((cursor.next(now).window, cursor.next(now).tail_window), (400, 400));
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
