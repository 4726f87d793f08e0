//! Time that a test moves: of the dispatcher, the SDK and the queue, and of what the database has written down.
//!
//! Only the time of day that PostgreSQL itself tells cannot be moved, so the times in its rows move the other way.

use std::sync::mpsc;
use std::time::Duration;

use ordered_outbox::Store;
use sqlx::Connection as _;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, advance, pause};

/// How long real work has between two moves.
const TICK: Duration = Duration::from_millis(10);
/// The furthest it moves at once, whatever the speed: less than anything here waits for.
const MOST: Duration = Duration::from_millis(250);
/// How far rows may be behind.
const BEHIND: Duration = Duration::from_secs(5);

/// The clock of a `current_thread` runtime, moved from here on only by [`tick`](Self::tick).
pub(crate) struct Clock {
    store: Store,
    ticked: std::time::Instant,
    rows_behind: Duration,
    /// Without a blocking task, a runtime that waits for a socket would run ahead to its next timer.
    _no_running_ahead: (mpsc::Sender<()>, JoinHandle<()>),
}

impl Clock {
    pub(crate) fn of(store: &Store) -> Self {
        let (held, holds) = mpsc::channel();
        let blocking = spawn_blocking(move || _ = holds.recv());
        pause();
        Self {
            store: store.clone(),
            ticked: std::time::Instant::now(),
            rows_behind: Duration::ZERO,
            _no_running_ahead: (held, blocking),
        }
    }

    /// Lets things happen for a moment, which lasts `speed` times as long for them.
    pub(crate) async fn tick(&mut self, speed: u32) {
        spawn_blocking(|| std::thread::sleep(TICK)).await.unwrap();
        // whatever happened since the last one, had that time at the least
        let real = self.ticked.elapsed();
        self.ticked += real;
        let moved = (real * speed).min(MOST).max(real);
        advance(moved).await;
        self.rows_behind += moved.saturating_sub(real);
        if self.rows_behind >= BEHIND {
            self.move_rows().await;
        }
    }

    /// Ticks until it is this late.
    pub(crate) async fn run_until(&mut self, then: Instant, speed: u32) {
        while Instant::now() < then {
            self.tick(speed).await;
        }
    }

    async fn move_rows(&mut self) {
        let mut connection = self.store.pool().acquire().await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        // in the order in which everyone locks rows
        sqlx::query("SELECT FROM outbox WHERE status IN ('pending', 'processing') ORDER BY id FOR UPDATE")
            .execute(&mut *tx)
            .await
            .unwrap();
        sqlx::query(
            "UPDATE outbox SET created_at = created_at - by, available_at = available_at - by,
                    lease_until = lease_until - by, first_tried_at = first_tried_at - by
             FROM make_interval(secs => $1) by WHERE status IN ('pending', 'processing')",
        )
        .bind(self.rows_behind.as_secs_f64())
        .execute(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
        self.rows_behind = Duration::ZERO;
    }
}
