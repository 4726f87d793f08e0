//! The cursor: where a claim looks, and at how much.
//!
//! Due rows are looked at in (`available_at`, id) order, a window at a time, and a claim goes on where the one before it
//! ended. So nothing is stepped over twice: not what waits, and not the dead index entries of what was finished, which an
//! old snapshot anywhere in the database keeps for hours. What becomes claimable is written with `available_at` as of now,
//! in front of every cursor.
//!
//! A row can still turn up behind it: its transaction took long to commit, or another dispatcher had it locked just
//! then. Therefore the cursor rewinds to the front at least every second. A pass from there that takes long is repeated
//! less often, so that rewinding never takes more than a tenth of the time.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::{Position, Window};

/// Time between two looks from the front, unless they take long.
const REWIND_INTERVAL: Duration = Duration::from_secs(1);

/// How many times longer than the look from the front lasted the next one waits.
const REWIND_SHARE: u32 = 10;

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
                self.rewind_at = now + REWIND_INTERVAL.max(catch_up.took * REWIND_SHARE);
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
