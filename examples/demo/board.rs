//! What everybody in the demo knows of each other: counts, states, the time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::producers::LIFECYCLE;
use crate::progress::Screen;
use crate::tracker::{Arrival, Delivery, Tracker};

/// Distinct messages received.
#[derive(Clone, Copy, Default)]
pub(crate) struct Delivered {
    pub(crate) orders: u64,
    pub(crate) ledger: u64,
}

impl Delivered {
    pub(crate) const fn total(self) -> u64 {
        self.orders + self.ledger
    }
}

pub(crate) struct Board {
    pub(crate) orders: u64,
    /// The order that carries the event SQS refuses.
    pub(crate) poison: u64,
    pub(crate) committed: AtomicU64,
    pub(crate) rolled_back: AtomicU64,
    /// Messages of other runs, dropped.
    pub(crate) foreign: AtomicU64,
    start: Instant,
    tracker: Mutex<Tracker>,
    latencies: Mutex<Vec<Duration>>,
    delivered: watch::Sender<Delivered>,
    states: Mutex<BTreeMap<String, String>>,
    screen: Screen,
}

impl Board {
    pub(crate) fn new(orders: u64) -> Self {
        Self {
            orders,
            poison: orders / 4,
            committed: AtomicU64::new(0),
            rolled_back: AtomicU64::new(0),
            foreign: AtomicU64::new(0),
            start: Instant::now(),
            tracker: Mutex::default(),
            latencies: Mutex::default(),
            delivered: watch::Sender::default(),
            states: Mutex::default(),
            screen: Screen::new(orders),
        }
    }

    /// The messages that the lifecycles make: five an order, and one in the ledger.
    pub(crate) const fn expected(&self) -> u64 {
        self.orders * (LIFECYCLE.len() as u64 + 1)
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters one received message. `sent` is when its producer wrote it, by this board's clock.
    pub(crate) fn record(&self, delivery: &Delivery, sent: Duration) {
        let arrival = self.tracker().record(delivery);
        if arrival == Arrival::Duplicate {
            return;
        }
        let latency = self.elapsed().saturating_sub(sent);
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner).push(latency);
        self.delivered.send_modify(|delivered| {
            let order = delivery.aggregate.starts_with("order-");
            let count = if order { &mut delivered.orders } else { &mut delivered.ledger };
            *count += 1;
        });
    }

    pub(crate) fn delivered(&self) -> Delivered {
        *self.delivered.borrow()
    }

    /// Waits until `reached` holds; asked after each message that was received for the first time.
    pub(crate) async fn until(&self, reached: impl Fn(&Self, Delivered) -> bool) {
        // The sender lives as long as this board, so the wait cannot fail.
        let _ = self.delivered.subscribe().wait_for(|delivered| reached(self, *delivered)).await;
    }

    /// That share of all end-to-end latencies, 0.5 or 0.99 for example.
    pub(crate) fn latency(&self, share: f64) -> Duration {
        let mut sorted = self.latencies.lock().unwrap_or_else(PoisonError::into_inner).clone();
        sorted.sort_unstable();
        let at = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
        sorted.get(at).copied().unwrap_or_default()
    }

    /// Says what somebody is doing, until the next word of the same one.
    pub(crate) fn state(&self, who: &str, what: impl Into<String>) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).insert(who.to_owned(), what.into());
    }

    /// Who does what.
    pub(crate) fn states(&self) -> String {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.iter().map(|(who, what)| format!("{who} {what}")).collect::<Vec<_>>().join(", ")
    }

    /// Everything in one line.
    pub(crate) fn line(&self) -> String {
        let Delivered { orders, ledger } = self.delivered();
        let committed = self.committed.load(Ordering::Relaxed);
        let expected = self.expected();
        format!(
            "{committed}/{expected} committed, {orders} order and {ledger} ledger events delivered; {}",
            self.states()
        )
    }

    /// Prints above the progress bars, with the time.
    pub(crate) fn say(&self, text: &str) {
        self.screen.say(&format!("{:6.1} s  {text}", self.elapsed().as_secs_f64()));
    }

    /// Shows the progress for as long as it is polled.
    pub(crate) async fn show(&self) {
        self.screen.follow(self).await;
    }

    /// Takes the bars off the screen.
    pub(crate) fn close(&self) {
        self.screen.close();
    }
}
