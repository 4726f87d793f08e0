//! The cursor: where a claim looks, and at how much.
//!
//! Due rows are looked at in (`available_at`, id) order, a window at a time, and a claim goes on where the one before it
//! ended. So nothing is stepped over twice: not what waits, and not the dead index entries of what was finished, which an
//! old snapshot anywhere in the database keeps for hours. What becomes claimable is written with `available_at` as of now,
//! at the *tail*. As long as the position is behind the tail, each claim looks at a window there, too: what becomes claimable
//! does not wait until a long backlog, of rows that wait perhaps, has been looked at.
//!
//! A row can still turn up behind the position: its transaction took long to commit, or another dispatcher had it locked
//! just then. Therefore the cursor rewinds to the front at least every second. A look from there that takes long is
//! repeated less often, so that rewinding takes no more than a tenth of the time; but ten seconds after it was over, since
//! what took long may have been a database that stood still. Leases that ran out are looked for whenever it rewinds, and on
//! the way once ten seconds have gone by.
//!
//! Where other dispatchers look at the same rows, it steps [aside](super::aside).

use std::time::Duration;

use tokio::time::Instant;

use super::aside::Aside;
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

/// How long a backlog in which nearly everything waits is only waded through beside claims that the tail fills. Then it goes
/// first: somewhere in it may be a row that does not wait.
const WADE_FOR: Duration = Duration::from_secs(1);

/// Looks at due rows front to back, and from the front again.
#[derive(Debug)]
pub(super) struct Cursor {
    from: Option<Position>,
    tail: Option<Position>,
    window: u32,
    min_window: u32,
    catching_up: Option<CatchUp>,
    rewind_at: Instant,
    took_over_at: Instant,
    /// The position has been behind the tail since then.
    backlog_since: Option<Instant>,
    aside: Aside,
    aside_at_tail: Aside,
}

/// A look from the front, until it is where the one before it had got to.
#[derive(Debug)]
struct CatchUp {
    to: Option<Position>,
    /// That was the tail. It has moved since, and was looked at all the while.
    to_tail: bool,
    took: Duration,
}

impl Cursor {
    /// At the front. A window is at least `min_window` rows: a batch, which is enough when no row waits behind another.
    pub(super) fn new(min_window: u32, now: Instant) -> Self {
        let mut cursor = Self {
            from: None,
            tail: None,
            window: min_window,
            min_window,
            catching_up: None,
            rewind_at: now,
            took_over_at: now,
            backlog_since: None,
            aside: Aside::new(),
            aside_at_tail: Aside::new(),
        };
        cursor.rewind();
        cursor
    }

    /// What the next claim looks at.
    pub(super) fn next(&mut self, now: Instant) -> Look {
        if now >= self.rewind_at && self.catching_up.is_none() {
            self.rewind();
        }
        let tail_window = if self.has_backlog() { self.min_window } else { self.window.max(self.min_window) };
        Look {
            takes_over: self.from.is_none() || now - self.took_over_at >= MAX_REWIND_INTERVAL,
            from: self.from,
            window: self.window,
            skip: self.aside.skip(),
            tail: self.tail,
            tail_window,
            tail_skip: self.aside_at_tail.skip(),
        }
    }

    /// The next claim begins at the front, and looks for leases that ran out.
    pub(super) fn rewind(&mut self) {
        let to_tail = !self.has_backlog();
        let to = self.aside.end().or(self.from);
        self.from = None;
        self.catching_up = Some(CatchUp { to, to_tail, took: Duration::ZERO });
    }

    /// Whether the next claim steps over rows that others are at.
    pub(super) const fn steps_aside(&self) -> bool {
        self.aside.skip() > 0 || self.aside_at_tail.skip() > 0
    }

    /// Takes in what a claim saw; `was_filled`: it took as much as it was asked to. Whether nothing is left to look at.
    pub(super) fn saw(&mut self, window: &Window, was_filled: bool, took: Duration, now: Instant) -> bool {
        let had_backlog = self.has_backlog();
        if self.from.is_none() || now - self.took_over_at >= MAX_REWIND_INTERVAL {
            self.took_over_at = now;
        }
        let at_end = self.go_on(window, was_filled);
        if let Some(catch_up) = &mut self.catching_up {
            catch_up.took += took;
            if at_end || !self.aside.is_under_way() && catch_up.to.is_none_or(|to| self.from >= Some(to)) {
                self.rewind_at = now + (catch_up.took * REWIND_SHARE).clamp(REWIND_INTERVAL, MAX_REWIND_INTERVAL);
                if catch_up.to_tail {
                    self.from = self.tail;
                }
                self.catching_up = None;
            }
        }
        if self.has_backlog() {
            self.backlog_since.get_or_insert(now);
        } else {
            self.backlog_since = None;
        }
        self.window = self.next_window(window, was_filled, had_backlog, now);
        at_end
    }

    /// Where the next claim looks. Whether nothing is left to look at.
    fn go_on(&mut self, window: &Window, was_filled: bool) -> bool {
        let batch = self.min_window;
        if window.ended && !self.aside.is_under_way() && !self.aside_at_tail.is_under_way() {
            (self.from, self.tail) = (Some(window.reached), Some(window.tail));
            return true;
        }
        let goes_on = was_filled && !window.ended;
        let tail = self.aside_at_tail.place(self.tail, window.tail, window.lost_of_tail, goes_on, batch);
        let is_over = window.reached == window.tail;
        self.from = if is_over && !self.aside.is_under_way() {
            // along with the tail
            Some(tail)
        } else {
            Some(self.aside.place(self.from, window.reached, window.lost_of_backlog, was_filled && !is_over, batch))
        };
        self.tail = Some(tail);
        false
    }

    fn next_window(&self, seen: &Window, was_filled: bool, had_backlog: bool, now: Instant) -> u32 {
        let backlog_waits = had_backlog && was_filled && seen.waiting > self.window / 2;
        let wades = backlog_waits && self.backlog_since.is_none_or(|since| now - since < WADE_FOR);
        let found_enough = was_filled && (wades || !backlog_waits);
        let least = if wades { self.min_window.div_ceil(4) } else { self.min_window };
        // where the backlog goes first, the claim is dear but for a short while
        let most = if backlog_waits && !wades { 4 * MAX_AGGREGATES } else { MAX_AGGREGATES };
        // Few heads among many rows: look at more. Many aggregates, each a probe, or enough heads: at fewer.
        let window = if found_enough || seen.aggregates > most {
            self.window / 2
        } else if seen.ended || seen.aggregates > most / 2 {
            self.window
        } else {
            self.window.saturating_mul(2)
        };
        window.clamp(least, MAX_WINDOW.max(self.min_window))
    }

    fn has_backlog(&self) -> bool {
        self.from.is_none() || self.from != self.tail
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
        Window {
            reached: at(reached),
            tail: at(1_000),
            ended: false,
            aggregates: 10,
            waiting: 0,
            excepted: 0,
            lost_of_backlog: 0,
            lost_of_tail: 0,
        }
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
        assert_eq!(cursor.next(now), Look::after(&Window { tail: at(20), ..saw(8) }, 100));
        cursor.saw(&Window { tail: at(30), ..saw(12) }, true, MS, now);
        assert_eq!(cursor.next(now), Look::after(&ended(30), 100));
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

    /// One that lost a quarter of a batch in the backlog.
    fn collided(reached: i64) -> Window {
        Window { lost_of_backlog: 25, ..saw(reached) }
    }

    #[test]
    fn a_claim_that_lost_a_quarter_of_a_batch_steps_aside_where_it_lost_and_twice_as_far_the_next_time() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&Window { lost_of_backlog: 24, lost_of_tail: 24, ..saw(1) }, false, MS, now);
        assert!(!cursor.steps_aside());
        let mut skips = Vec::new();
        for reached in 2..402 {
            cursor.saw(&collided(reached), false, MS, now);
            let look = cursor.next(now);
            assert_eq!((look.from, look.tail_skip), (Some(at(reached)), 0));
            assert!(cursor.steps_aside());
            skips.push(look.skip);
        }
        assert_eq!(skips[0], 100);
        assert!(skips[1] <= 200 && skips[2] <= 400 && skips[3] <= 800);
        assert!(skips.iter().all(|skip| (100..=6_400).contains(skip) && skip % 100 == 0));
        assert!(skips.iter().any(|skip| *skip > 3_200));
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&Window { lost_of_tail: 25, ..saw(1) }, false, MS, now);
        assert_eq!((cursor.next(now).skip, cursor.next(now).tail_skip), (0, 100));
    }

    #[test]
    fn it_comes_back_after_64_claims_or_when_one_is_not_filled_or_the_tail_is_reached() {
        let now = Instant::now();
        let aside = || {
            let mut cursor = Cursor::new(100, now);
            cursor.saw(&collided(1), false, MS, now);
            cursor.saw(&saw(50), true, MS, now);
            assert_eq!((cursor.next(now).from, cursor.next(now).skip), (Some(at(50)), 0));
            cursor
        };
        let mut cursor = aside();
        for reached in 51..113 {
            cursor.saw(&saw(reached), true, MS, now);
            assert_eq!(cursor.next(now).from, Some(at(reached)));
        }
        cursor.saw(&saw(113), true, MS, now);
        assert_eq!(cursor.next(now).from, Some(at(1)));
        cursor.saw(&saw(2), true, MS, now);
        assert_eq!(cursor.next(now).from, Some(at(2)), "it is at home");
        let mut cursor = aside();
        cursor.saw(&saw(51), false, MS, now);
        assert_eq!(cursor.next(now).from, Some(at(1)));
        let mut cursor = aside();
        assert!(!cursor.saw(&ended(60), true, MS, now), "not everything was looked at");
        assert_eq!((cursor.next(now).from, cursor.next(now).tail), (Some(at(1)), Some(at(60))));
        assert!(cursor.saw(&ended(61), false, MS, now));
        assert_eq!(cursor.next(now).from, Some(at(61)));
    }

    #[test]
    fn aside_at_the_tail_without_a_backlog_the_position_goes_along_and_comes_back() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&ended(1), false, MS, now);
        let at_tail = |reached, lost_of_tail| Window { tail: at(reached), lost_of_tail, ..saw(reached) };
        cursor.saw(&at_tail(2, 100), false, MS, now);
        let look = cursor.next(now);
        assert_eq!((look.from, look.tail, look.skip, look.tail_skip), (Some(at(2)), Some(at(2)), 0, 100));
        cursor.saw(&at_tail(9, 0), true, MS, now);
        assert_eq!((cursor.next(now).from, cursor.next(now).tail), (Some(at(9)), Some(at(9))));
        cursor.saw(&at_tail(12, 0), false, MS, now);
        assert_eq!((cursor.next(now).from, cursor.next(now).tail), (Some(at(2)), Some(at(2))));
    }

    #[test]
    fn a_look_from_the_front_ends_a_way_round_and_goes_on_where_that_began() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&collided(3), false, MS, now);
        cursor.saw(&saw(50), true, MS, now);
        cursor.rewind();
        assert_eq!((cursor.next(now).from, cursor.next(now).skip), (None, 0));
        cursor.saw(&saw(2), true, MS, now);
        cursor.saw(&saw(4), true, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).from, None, "it was over at 3");
    }

    #[test]
    fn a_look_from_the_front_is_not_over_aside() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        cursor.saw(&saw(9), true, MS, now);
        cursor.rewind();
        cursor.saw(&collided(2), false, MS, now);
        cursor.saw(&saw(20), true, MS, now);
        cursor.saw(&saw(21), false, MS, now);
        assert_eq!(cursor.next(now + REWIND_INTERVAL).from, Some(at(2)));
    }

    #[test]
    fn where_everything_was_looked_at_it_does_not_step_aside() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        assert!(cursor.saw(&Window { lost_of_backlog: 100, lost_of_tail: 100, ..ended(9) }, false, MS, now));
        assert!(!cursor.steps_aside());
        assert_eq!((cursor.next(now).from, cursor.next(now).tail), (Some(at(9)), Some(at(9))));
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
        // and not for longer than a second: `windows` takes no time
        let waiting = |was_filled, waiting| (was_filled, Window { waiting, ..saw(1) });
        let looks = [waiting(true, 100), waiting(true, 100), waiting(true, 26), waiting(true, 0), waiting(false, 100)];
        assert_eq!(windows(100, &looks), [50, 25, 25, 100, 200]);
        assert_eq!(windows(1, &[waiting(true, 1), waiting(true, 1)]), [1, 1]);
        // without a backlog it is the window of the tail itself
        let at_the_tail = Window { waiting: 100, tail: at(1), ..saw(1) };
        assert_eq!(windows(100, &[(true, at_the_tail), (true, at_the_tail)]), [50, 100]);
    }

    #[test]
    fn a_backlog_that_was_waded_through_for_a_second_is_looked_at_as_if_no_claim_was_filled() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        let mut window = |after: Duration, aggregates| {
            cursor.saw(&Window { waiting: 1_000, aggregates, ..saw(1) }, true, MS, now + after);
            cursor.next(now).window
        };
        assert_eq!([Duration::ZERO, WADE_FOR / 2].map(|after| window(after, 10)), [50, 25]);
        let seen = [10, 10, 251, 501, 1_001, 500].map(|aggregates| window(WADE_FOR, aggregates));
        assert_eq!(seen, [100, 200, 400, 400, 200, 400]);
        cursor.saw(&ended(9), false, MS, now + WADE_FOR);
        let rewound = now + WADE_FOR + REWIND_INTERVAL;
        assert_eq!(cursor.next(rewound).from, None);
        for _ in 0..4 {
            cursor.saw(&Window { waiting: 1_000, ..saw(1) }, true, MS, rewound);
        }
        assert_eq!(cursor.next(rewound).window, 25, "another backlog");
    }

    #[test]
    fn leases_that_ran_out_are_looked_for_at_the_front_and_ten_seconds_later_on_the_way() {
        let now = Instant::now();
        let mut cursor = Cursor::new(100, now);
        assert!(cursor.next(now).takes_over);
        cursor.saw(&ended(100), false, MS, now);
        let rewound = now + REWIND_INTERVAL;
        let look = cursor.next(rewound);
        assert!(look.takes_over && look.from.is_none());
        cursor.saw(&Window { tail: at(100), ..saw(1) }, true, MS, rewound);
        let late = rewound + MAX_REWIND_INTERVAL;
        assert!(!cursor.next(late - MS).takes_over);
        assert!(cursor.next(late).takes_over);
        cursor.saw(&Window { tail: at(100), ..saw(2) }, true, MS, late);
        assert!(!cursor.next(late + MS).takes_over);
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
