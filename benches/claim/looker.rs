//! Our claims, as the dispatcher makes them.

use std::time::Duration;

use ordered_outbox::outcome::{Outcome, Patience, Verdict};
use ordered_outbox::store::{Claim, ClaimRequest, Finalize, Finalized, Look};
use ordered_outbox::{DispatcherConfig, Message, Store};
use tokio::time::Instant;

use super::cursor::Cursor;
use super::scenario::Scenario;
use super::support::database::Database;
use super::support::samples::{Samples, ms};
use super::support::{BATCH, accepting, quick_or};

/// Rows of one step of parking, as the dispatcher parks.
const PARK_STEP: u32 = 500;

/// What was measured on copies of one table.
#[derive(Default)]
pub(crate) struct Ours {
    /// Each claim until 100 rows were in hand.
    pub(crate) cold: Samples,
    pub(crate) cold_total: Samples,
    pub(crate) cold_claims: Samples,
    pub(crate) park_took: Duration,
    pub(crate) parked: u64,
    pub(crate) settled: Samples,
    pub(crate) settled_rows: Samples,
    /// Those of them that took as much as they were asked to.
    pub(crate) settled_full: Samples,
}

pub(crate) async fn measure(template: &Database, scenario: &Scenario) -> Ours {
    let mut ours = Ours::default();
    let colds = quick_or(2, 7);
    for cold in 1..=colds {
        let database = template.copy().await;
        let _snapshot = scenario.snapshot(&database).await;
        let mut looker = Looker::new(database.store(2).await).await;
        let held = looker.until_full(&mut ours).await;
        if cold == colds {
            looker.finish(&held).await;
            (ours.park_took, ours.parked) = park(&looker.store).await;
            looker.settled(&mut ours).await;
        }
        looker.store.pool().close().await;
    }
    ours
}

async fn park(store: &Store) -> (Duration, u64) {
    let start = Instant::now();
    let (mut from, mut rows) = (None, 0);
    loop {
        let parked = store.park(from, PARK_STEP, Duration::ZERO).await.unwrap();
        rows += parked.rows;
        from = Some(parked.reached);
        if parked.ended {
            return (start.elapsed(), rows);
        }
    }
}

struct Looker {
    store: Store,
    cursor: Cursor,
    request: ClaimRequest,
}

/// One claim.
struct Look {
    took: Duration,
    messages: Vec<Message>,
    /// It began at the front, and there was nothing.
    is_over: bool,
}

impl Looker {
    /// On a connection that has claimed before, for a dispatcher opens its own once: a claim that looks at no row.
    async fn new(store: Store) -> Self {
        let config = DispatcherConfig::default();
        let request = ClaimRequest {
            owner: config.owner,
            lease: config.lease,
            max_attempts: config.patience.max_attempts,
            batch_size: BATCH,
            batch_bytes: config.batch_bytes,
            run_length: config.run_length,
            fill_up_to: BATCH,
            look: Look::from_the_front(0),
        };
        assert!(store.claim(&request).await.unwrap().messages.is_empty());
        Self { store, cursor: Cursor::new(BATCH, Instant::now()), request }
    }

    /// As `Claimer::run` does it.
    async fn look(&mut self) -> Look {
        let sent = Instant::now();
        self.request.look = self.cursor.next(sent);
        let Claim { messages, window } = self.store.claim(&self.request).await.unwrap();
        let took = sent.elapsed();
        self.cursor.saw(&window, messages.len() == BATCH as usize, took, Instant::now());
        let found_nothing = messages.is_empty() && window.ended;
        if found_nothing {
            self.cursor.rewind();
        }
        Look { took, messages, is_over: found_nothing && self.request.look.from.is_none() }
    }

    /// Claims until 100 rows are in hand, none of them finalized meanwhile.
    async fn until_full(&mut self, ours: &mut Ours) -> Vec<Message> {
        let (mut held, mut total, mut claims) = (Vec::new(), Duration::ZERO, 0u32);
        while held.len() < BATCH as usize {
            let look = self.look().await;
            assert!(!look.is_over, "the table has fewer than {BATCH} rows to take");
            held.extend(look.messages);
            total += look.took;
            claims += 1;
            ours.cold.push_ms(look.took);
        }
        ours.cold_total.push(ms(total));
        ours.cold_claims.push(f64::from(claims));
        held
    }

    /// Claims until there are enough samples, or nothing is left; begins at the front.
    async fn settled(&mut self, ours: &mut Ours) {
        self.cursor = Cursor::new(BATCH, Instant::now());
        while ours.settled.len() < quick_or(100, 900) {
            let look = self.look().await;
            if look.is_over {
                break;
            }
            ours.settled.push_ms(look.took);
            ours.settled_rows.push(look.messages.len() as f64);
            if look.messages.len() == BATCH as usize {
                ours.settled_full.push_ms(look.took);
            }
            self.finish(&look.messages).await;
        }
    }

    /// All of them are done, as the finalizer writes them.
    async fn finish(&self, messages: &[Message]) {
        if messages.is_empty() {
            return;
        }
        let verdicts: Vec<_> = messages
            .iter()
            .enumerate()
            .map(|(place, message)| {
                let behind = messages.get(place + 1);
                let ends_lane = behind.is_none_or(|behind| behind.aggregate_id != message.aggregate_id);
                Finalize { ends_lane, ..Finalize::new(message, done(message)) }
            })
            .collect();
        let answers = self.store.finalize(&verdicts).await.unwrap();
        assert!(answers.iter().all(|answer| *answer == Finalized::Finalized));
    }
}

fn done(message: &Message) -> Verdict {
    let accepted: Outcome = accepting::accepted();
    Patience::default().verdict(message, accepted, Duration::ZERO).expect("published is a verdict")
}
