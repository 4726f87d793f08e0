//! Aside: a way round the rows that other dispatchers are at.
//!
//! Dispatchers that look at the same rows at the same moment get what the others leave, and pay for looking. One that
//! collides steps over a random number of rows, goes on where it is alone, and comes back after a while, for what nobody
//! took.

use rand::RngExt as _;

use crate::store::Position;

/// A claim has collided if this part of a batch was locked or claimed by others just then.
const COLLISION: u32 = 4;

/// How far aside, in batches, at the most. Measured: a row stepped over costs about 0.2 us.
const MAX_ASIDE: u32 = 64;

/// Claims until it comes back: what was stepped over must not wait for long.
const CLAIMS_ASIDE: u32 = 64;

/// A way round rows that others are at.
#[derive(Debug)]
pub(super) struct Aside {
    /// Where it began, and ends; `None`: it has not begun.
    home: Option<Position>,
    skip: u32,
    claims_left: u32,
    /// How far it may lead, in batches: about as far as there have been rows.
    reach: u32,
}

impl Aside {
    pub(super) const fn new() -> Self {
        Self { home: None, skip: 0, claims_left: 0, reach: 1 }
    }

    /// Rows the next claim steps over.
    pub(super) const fn skip(&self) -> u32 {
        self.skip
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.home.is_some()
    }

    /// It is over; where it began.
    pub(super) const fn end(&mut self) -> Option<Position> {
        self.skip = 0;
        self.home.take()
    }

    /// Where the next claim looks, after one that began at `before`, reached this and lost so many heads to others.
    pub(super) fn place(
        &mut self,
        before: Option<Position>,
        reached: Position,
        lost: u32,
        goes_on: bool,
        batch: u32,
    ) -> Position {
        if self.skip > 0 {
            // twice as far the next time, unless there were not that many rows
            let stayed = before == Some(reached);
            self.reach = if stayed { self.reach / 2 } else { self.reach.saturating_mul(2) }.clamp(1, MAX_ASIDE);
            self.skip = 0;
        }
        if lost.saturating_mul(COLLISION) >= batch.max(1) {
            self.home.get_or_insert(reached);
            self.claims_left = CLAIMS_ASIDE;
            self.skip = rand::rng().random_range(1..=self.reach).saturating_mul(batch);
            return reached;
        }
        self.claims_left = self.claims_left.saturating_sub(1);
        if goes_on && self.claims_left > 0 {
            return reached;
        }
        self.end().unwrap_or(reached)
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn at(seconds: i64) -> Position {
        Position::new(DateTime::from_timestamp(seconds, 0).unwrap(), 7)
    }

    #[test]
    fn it_steps_aside_half_as_far_after_there_were_not_so_many_rows() {
        let mut aside = Aside { reach: 64, ..Aside::new() };
        for reach in [64, 32, 16, 8, 4, 2, 1, 1] {
            assert_eq!(aside.reach, reach);
            aside.skip = 100;
            assert_eq!(aside.place(Some(at(1)), at(1), 0, false, 100), at(1));
        }
    }

    /// With a batch of one, every head lost is a collision.
    #[test]
    fn a_dispatcher_with_tiny_batches_steps_aside_too() {
        let mut aside = Aside::new();
        aside.place(None, at(1), 0, false, 1);
        assert_eq!(aside.skip, 0);
        aside.place(None, at(1), 1, false, 1);
        assert_eq!(aside.skip, 1);
    }
}
