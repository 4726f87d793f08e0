//! Our claims, as the dispatcher makes them.

use std::time::Duration;

use ordered_outbox::store::{Claim, ClaimRequest, Look, Session};
use ordered_outbox::{Message, Store};
use tokio::time::Instant;

use super::cursor::Cursor;
use super::scenario::Scenario;
use super::support::database::Database;
use super::support::samples::{Samples, ms};
use super::support::{BATCH, ours, quick_or};

/// Rows of one step of parking, as the dispatcher parks.
const PARK_STEP: u32 = 500;

/// What was measured on copies of one table.
#[derive(Default)]
pub(crate) struct Ours {
    /// From the first claim on a new connection until 100 rows were in hand.
    pub(crate) first_total: Samples,
    pub(crate) first_claims: Samples,
    /// Claims on a table that nobody had looked at, and on one where everything that waits is parked.
    pub(crate) cold: Claims,
    pub(crate) settled: Claims,
    pub(crate) park_took: Duration,
    pub(crate) parked: u64,
}

/// Claims one after the other, each followed by a finalize, untimed.
#[derive(Default)]
pub(crate) struct Claims {
    pub(crate) all: Samples,
    pub(crate) rows: Samples,
    /// Those of them that took as much as they were asked to.
    pub(crate) full: Samples,
}

impl Claims {
    /// Of the full ones, if there are enough of them to tell; else of all.
    pub(crate) fn p50(&self) -> f64 {
        if self.full.len() < 10 { self.all.median() } else { self.full.median() }
    }
}

pub(crate) async fn measure(template: &Database, scenario: &Scenario) -> Ours {
    let mut ours = Ours::default();
    for _ in 0..quick_or(1, 5) {
        let database = template.copy().await;
        let _snapshot = scenario.snapshot(&database).await;
        let mut looker = Looker::new(database.store(1).await).await;
        looker.until_full(&mut ours).await;
        looker.store.pool().close().await;
    }
    for is_settled in [false, true] {
        let database = template.copy().await;
        let _snapshot = scenario.snapshot(&database).await;
        let mut looker = Looker::new(database.store(1).await).await;
        if is_settled {
            (ours.park_took, ours.parked) = park(&looker.store).await;
        }
        let claims = looker.many().await;
        if is_settled {
            ours.settled = claims;
        } else {
            ours.cold = claims;
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
    session: Session,
    cursor: Cursor,
    request: ClaimRequest,
}

/// One claim.
struct Claimed {
    took: Duration,
    messages: Vec<Message>,
    /// It began at the front, and there was nothing.
    is_over: bool,
}

impl Looker {
    /// On a connection that has claimed before, for a dispatcher opens its own once: a claim that looks at no row.
    async fn new(store: Store) -> Self {
        let request = ours::request(Look::from_the_front(0));
        let mut session = store.session();
        assert!(session.claim(&request).await.unwrap().messages.is_empty());
        Self { store, session, cursor: Cursor::new(BATCH, Instant::now()), request }
    }

    /// As `Claimer::run` does it.
    async fn look(&mut self) -> Claimed {
        let sent = Instant::now();
        self.request.look = self.cursor.next(sent);
        let Claim { messages, window } = self.session.claim(&self.request).await.unwrap();
        let took = sent.elapsed();
        let at_end = self.cursor.saw(&window, messages.len() == BATCH as usize, took, Instant::now());
        let found_nothing = messages.is_empty() && at_end;
        if found_nothing {
            self.cursor.rewind();
        }
        Claimed { took, messages, is_over: found_nothing && self.request.look.from.is_none() }
    }

    /// Claims until 100 rows are in hand, none of them finalized meanwhile.
    async fn until_full(&mut self, ours: &mut Ours) {
        let (mut held, mut total, mut claims) = (0, Duration::ZERO, 0u32);
        while held < BATCH as usize {
            let look = self.look().await;
            assert!(!look.is_over, "the table has fewer than {BATCH} rows to take");
            held += look.messages.len();
            total += look.took;
            claims += 1;
        }
        ours.first_total.push(ms(total));
        ours.first_claims.push(f64::from(claims));
    }

    /// Claims until there are enough samples, or nothing is left.
    async fn many(&mut self) -> Claims {
        let mut claims = Claims::default();
        while claims.all.len() < quick_or(150, 900) {
            let look = self.look().await;
            if look.is_over {
                break;
            }
            claims.all.push_ms(look.took);
            claims.rows.push(look.messages.len() as f64);
            if look.messages.len() == BATCH as usize {
                claims.full.push_ms(look.took);
            }
            ours::finish(&mut self.session, &look.messages).await;
        }
        claims
    }
}
