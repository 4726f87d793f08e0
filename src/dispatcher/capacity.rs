//! Capacity: how many rows and bytes a dispatcher may hold, from before a claim until a row has left `processing`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::lane::Held;
use crate::message::Message;

/// Bytes are counted in units of this many, so that a semaphore can count them.
const UNIT: u32 = 1024;

/// Rows that a dispatcher holds, in batches: one is claimed while one is published and one is finalized. Measured: with two,
/// claims and finalizes of 20 busy aggregates take turns.
const BATCHES: u32 = 3;

/// Largest row the table takes (`outbox_size_bounded`): a claim always returns one row if there is any.
const LARGEST_ROW: u32 = 4 << 20;

/// How long a claim waits for room for half a batch, rather than fetch a row or two at the price of a batch.
const GATHER: Duration = Duration::from_millis(10);

/// What is free, in rows and in units of bytes: three batches of rows, and of bytes two and one row more, so that there is
/// room for any row as long as less than two batches are held.
#[derive(Debug)]
pub(super) struct Capacity {
    rows: Arc<Semaphore>,
    units: Arc<Semaphore>,
    batch_rows: u32,
    batch_units: u32,
}

/// Room for one claim.
#[derive(Debug)]
pub(super) struct Room {
    rows: OwnedSemaphorePermit,
    units: OwnedSemaphorePermit,
    batch_units: u32,
    fill_up_to: u32,
}

/// One held row's part of the capacity: free again when this is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    #[expect(dead_code, reason = "given back when this is dropped")]
    row: Option<OwnedSemaphorePermit>,
    #[expect(dead_code, reason = "given back when this is dropped")]
    units: Option<OwnedSemaphorePermit>,
}

impl Capacity {
    pub(super) fn new(batch_rows: u32, batch_bytes: u32) -> Self {
        let batch_units = batch_bytes.div_ceil(UNIT).max(1);
        Self {
            rows: Arc::new(Semaphore::new((BATCHES * batch_rows) as usize)),
            units: Arc::new(Semaphore::new((2 * batch_units + LARGEST_ROW / UNIT) as usize)),
            batch_rows,
            batch_units,
        }
    }

    /// Room for at least one row, however large, and at most a batch.
    pub(super) async fn room(&self) -> Room {
        let mut rows = acquire(&self.rows, 1).await;
        let gathered = tokio::time::timeout(GATHER, acquire(&self.rows, (self.batch_rows / 2).saturating_sub(1)));
        if let Ok(more) = gathered.await {
            rows.merge(more);
        }
        extend(&mut rows, &self.rows, self.batch_rows);
        let mut units = acquire(&self.units, LARGEST_ROW / UNIT).await;
        extend(&mut units, &self.units, self.batch_units);
        let held = (BATCHES * self.batch_rows) as usize - self.rows.available_permits() - rows.num_permits();
        let fill_up_to = ((BATCHES - 1) * self.batch_rows).saturating_sub(held as u32);
        Room { rows, units, batch_units: self.batch_units, fill_up_to }
    }

    /// Whether nothing is held outside of this room.
    pub(super) fn is_all_in(&self, room: &Room) -> bool {
        self.rows.available_permits() + room.rows.num_permits() == (BATCHES * self.batch_rows) as usize
    }
}

impl Room {
    pub(super) fn rows(&self) -> u32 {
        self.rows.num_permits() as u32
    }

    /// Rows behind heads may fill two batches. The last one is kept for heads: a few aggregates with long lanes and a slow
    /// broker must not take all there is from the others.
    pub(super) fn fill_up_to(&self) -> u32 {
        self.fill_up_to
    }

    pub(super) fn bytes(&self) -> u32 {
        // a single row may be larger, and there is room for it
        self.batch_units.min(self.units.num_permits() as u32).saturating_mul(UNIT)
    }

    /// Gives each message its part; the rest is free again.
    pub(super) fn hold(mut self, messages: Vec<Message>) -> Vec<Held> {
        messages
            .into_iter()
            .map(|message| {
                // rounded up, so the last rows of a full claim may find a unit too few: they take what is there
                let units = message.size_bytes().div_ceil(UNIT as usize).min(self.units.num_permits());
                let permit = Permit { row: self.rows.split(1), units: self.units.split(units) };
                Held { message, permit }
            })
            .collect()
    }
}

#[cfg(test)]
impl Permit {
    pub(super) const fn none() -> Self {
        Self { row: None, units: None }
    }
}

/// Waits for `count` permits.
async fn acquire(semaphore: &Arc<Semaphore>, count: u32) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_many_owned(count).await.expect("the semaphore is never closed")
}

/// Adds what is free, up to `most` in all.
fn extend(permits: &mut OwnedSemaphorePermit, semaphore: &Arc<Semaphore>, most: u32) {
    let room = (most as usize).saturating_sub(permits.num_permits());
    let free = semaphore.available_permits().min(room) as u32;
    // the claimer is the only one who takes any, so what is free stays free
    if let Ok(more) = Arc::clone(semaphore).try_acquire_many_owned(free) {
        permits.merge(more);
    }
}

#[cfg(test)]
mod tests {
    use super::super::lane::tests::held;
    use super::*;

    fn message(bytes: usize) -> Message {
        Message { payload: "x".repeat(bytes - 2), ..held("a", 1).message }
    }

    #[tokio::test]
    async fn three_batches_of_rows_fit_and_a_fourth_waits_for_one_to_end() {
        let capacity = Capacity::new(4, 1 << 20);
        let messages = |count| (0..count).map(|_| message(10)).collect::<Vec<_>>();
        let first = capacity.room().await;
        assert_eq!((first.rows(), capacity.is_all_in(&first)), (4, true));
        assert_eq!(first.fill_up_to(), 8);
        let held = first.hold(messages(3));
        let second = capacity.room().await;
        assert_eq!(second.fill_up_to(), 5);
        assert_eq!(
            (second.rows(), capacity.is_all_in(&second)),
            (4, false),
            "the row that was not found is free again"
        );
        let second = second.hold(messages(4));
        let third = capacity.room().await;
        assert_eq!((third.rows(), third.fill_up_to()), (4, 1), "the last batch is for heads");
        let mut third = third.hold(messages(4));
        let fourth = capacity.room().await;
        assert_eq!((fourth.rows(), fourth.fill_up_to()), (1, 0));
        let fourth = fourth.hold(messages(1));
        third.pop();
        assert_eq!(capacity.room().await.rows(), 1);
        drop((held, second, third, fourth));
        assert_eq!(capacity.room().await.rows(), 4);
    }

    #[tokio::test]
    async fn bytes_that_are_held_leave_less_to_claim_but_room_for_the_largest_row_there_can_be() {
        let capacity = Capacity::new(100, 8 << 20);
        let first = capacity.room().await;
        assert_eq!(first.bytes(), 8 << 20);
        let held = first.hold((0..8).map(|_| message(1 << 20)).collect());
        let second = capacity.room().await;
        assert_eq!(second.bytes(), 8 << 20);
        let more = second.hold((0..8).map(|_| message(1 << 20)).collect());
        let third = capacity.room().await;
        assert_eq!(third.bytes(), 4 << 20);
        drop((held, more, third));
        assert!(capacity.is_all_in(&capacity.room().await));
    }

    #[tokio::test]
    async fn small_batches_still_overlap_and_a_row_larger_than_two_of_them_holds_up_the_next() {
        let capacity = Capacity::new(10, 1 << 20);
        let first = capacity.room().await;
        assert_eq!(first.bytes(), 1 << 20);
        let held = first.hold(vec![message(1 << 20)]);
        let large = capacity.room().await.hold(vec![message(4 << 20)]);
        let waits = tokio::time::timeout(Duration::from_millis(30), capacity.room());
        assert!(waits.await.is_err(), "more than two batches are held");
        drop(large);
        assert_eq!(capacity.room().await.bytes(), 1 << 20);
        drop(held);
    }
}
