//! Session: a connection kept for one caller's statements.

use std::time::Duration;

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use tokio::time::Instant;

use super::{Store, StoreError, failed};

/// A connection idle for longer goes back first: a firewall may have forgotten it, and a statement on it would wait for
/// minutes. The pool asks it whether it is well, and gives another one meanwhile.
const MAX_IDLE: Duration = Duration::from_secs(10);

/// A connection kept between one caller's claims or finalizes.
///
/// A pool asks every connection that comes back whether it is well. That is a round trip a statement, and the next
/// statement may get another connection, where what it reads of the catalog is not cached yet. Where the pool has none to
/// spare, nothing is kept.
#[derive(Debug)]
pub struct Session {
    store: Store,
    kept: Option<(PoolConnection<Postgres>, Instant)>,
}

impl Session {
    /// The kept connection, or one of the pool. Give it to [`keep`](Self::keep) unless a statement on it failed: dropped,
    /// it goes back into the pool, which looks at it.
    pub(super) async fn connection(&mut self, step: &'static str) -> Result<PoolConnection<Postgres>, StoreError> {
        if let Some((connection, since)) = self.kept.take() {
            if !is_stale(since, Instant::now()) && !self.store.pool.is_closed() {
                return Ok(connection);
            }
            // before the next one is asked for: it may be the only one
            drop(connection);
        }
        self.store.pool.acquire().await.map_err(failed(step))
    }

    /// Gives the connection back: nothing is to be sent for a while.
    pub fn rest(&mut self) {
        self.kept = None;
    }

    /// Whether a connection is kept.
    #[must_use]
    pub const fn is_resting(&self) -> bool {
        self.kept.is_none()
    }

    /// Keeps it, unless others may be waiting for one.
    pub(super) fn keep(&mut self, connection: PoolConnection<Postgres>) {
        let pool = &self.store.pool;
        let is_scarce = pool.num_idle() == 0 && pool.size() >= pool.options().get_max_connections();
        if !is_scarce && !pool.is_closed() {
            self.kept = Some((connection, Instant::now()));
        }
    }
}

fn is_stale(since: Instant, now: Instant) -> bool {
    now - since >= MAX_IDLE
}

impl Store {
    /// A session. It takes a connection out of the pool with its first statement, and keeps it for less than 10 s without
    /// another one, until it [rests](Session::rest) or is dropped, which has to be inside of a Tokio runtime.
    #[must_use]
    pub fn session(&self) -> Session {
        Session { store: self.clone(), kept: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_kept_for_less_than_ten_seconds_without_a_statement() {
        let now = Instant::now();
        assert!(!is_stale(now, now));
        assert!(!is_stale(now, now + Duration::from_millis(9_999)));
        assert!(is_stale(now, now + Duration::from_secs(10)));
    }
}
