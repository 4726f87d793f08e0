//! Claim: takes due messages under a lease, each aggregate's oldest first.

use std::time::Duration;

use super::{Position, Session, Store, StoreError, failed};
use crate::message::Message;

/// What a claim asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Name of this dispatcher, for people.
    pub owner: String,
    /// How long the rows are this dispatcher's.
    pub lease: Duration,
    /// A row whose lease ran out is taken over only while it has spent fewer attempts than this.
    pub max_attempts: u32,
    /// Most rows to take.
    pub batch_size: u32,
    /// Most bytes of payload and headers to take; a row that is larger by itself is taken alone.
    pub batch_bytes: u32,
    /// Most rows of one aggregate to take.
    pub run_length: u32,
    /// Rows behind heads are taken only as long as all that is taken stays within this many rows.
    pub fill_up_to: u32,
    /// Which due rows to look at: the cost of a claim that finds little.
    pub look: Look,
    /// No head of these aggregate types is taken: their destination is down.
    pub except: Vec<String>,
}

/// Which due rows a claim looks at: some of the backlog, from a position up to the tail, and some at the tail, where rows
/// become due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Whether to look for leases that ran out, too.
    pub takes_over: bool,
    /// Where to begin: the position an earlier claim reached. `None`: at the front.
    pub from: Option<Position>,
    /// Most rows to look at from there on, up to the tail.
    pub window: u32,
    /// Rows to step over there first, because others are at them. Where fewer than a window are left behind them, the
    /// position stays.
    pub skip: u32,
    /// The tail that an earlier claim told. `None`: `from` is at the tail; or, at the front, the tail is where the due rows
    /// end just now.
    pub tail: Option<Position>,
    /// Most rows to look at from the tail on.
    pub tail_window: u32,
    /// Rows to step over there first. Where fewer than a window are left behind them, the tail stays.
    pub tail_skip: u32,
}

impl Look {
    /// At up to `rows` rows from the front on, at as many from the tail on, and at leases that ran out.
    #[must_use]
    pub const fn from_the_front(rows: u32) -> Self {
        Self { takes_over: true, from: None, window: rows, skip: 0, tail: None, tail_window: rows, tail_skip: 0 }
    }

    /// At up to `rows` rows from where an earlier claim ended, and at as many from the tail on.
    #[must_use]
    pub const fn after(earlier: &Window, rows: u32) -> Self {
        Self { takes_over: false, from: Some(earlier.reached), tail: Some(earlier.tail), ..Self::from_the_front(rows) }
    }
}

/// What a claim took, and what it saw.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The rows taken, in (aggregate id, id) order.
    pub messages: Vec<Message>,
    /// What the window was like.
    pub window: Window,
}

/// The due rows that a claim looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where the next claim goes on; the tail, once the backlog has been looked at.
    pub reached: Position,
    /// The tail. Where it is the end of the due rows, 0.2 s ago: rows of that time may still be about to commit.
    pub tail: Position,
    /// No due row is left to look at, neither on the way to the tail nor after it.
    pub ended: bool,
    /// Aggregates seen.
    pub aggregates: u32,
    /// Rows seen and left for good: they wait behind others, or somebody else has them locked.
    pub waiting: u32,
    /// Of these, rows of aggregate types that were not to be taken.
    pub excepted: u32,
    /// Heads in the backlog's window that somebody else took or had locked just then. Zero if the batch was filled.
    pub lost_of_backlog: u32,
    /// The same at the tail.
    pub lost_of_tail: u32,
}

impl Store {
    /// One [`Session::claim`] on any connection of the pool.
    ///
    /// # Errors
    /// As [`Session::claim`].
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        self.session().claim(request).await
    }
}

impl Session {
    /// Takes up to `batch_size` rows: `lease_version` and `attempts` + 1.
    ///
    /// Only heads of aggregates and the rows right behind them (P2). Waits for no lock. Read the monotonic clock
    /// *before* calling: the lease begins at the database while the reply is still on its way (P6).
    ///
    /// # Errors
    /// The statement failed. The rows may be claimed all the same, if only the reply was lost; their lease runs out.
    pub async fn claim(&mut self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let mut connection = self.connection("claim").await?;
        let look = &request.look;
        let from = look.from.unwrap_or(Position::FRONT);
        let tail = look.tail.or(look.from);
        let rows = sqlx::query_file!(
            "src/store/sql/claim.sql",
            request.owner,
            request.lease.as_secs_f64(),
            i32::try_from(request.max_attempts).unwrap_or(i32::MAX),
            i64::from(request.batch_size),
            i64::from(request.run_length),
            i64::from(request.batch_bytes),
            i64::from(look.window),
            from.available_at,
            from.id,
            look.takes_over,
            i64::from(request.fill_up_to),
            i64::from(look.skip),
            tail.map(|tail| tail.available_at),
            tail.map(|tail| tail.id),
            i64::from(look.tail_window),
            i64::from(look.tail_skip),
            &request.except
        )
        .fetch_all(&mut *connection)
        .await
        .map_err(failed("claim"))?;
        self.keep(connection);
        // the statement never answers without a row
        let nothing = Window {
            reached: from,
            tail: from,
            ended: true,
            aggregates: 0,
            waiting: 0,
            excepted: 0,
            lost_of_backlog: 0,
            lost_of_tail: 0,
        };
        let count = |count: i64| u32::try_from(count).unwrap_or(u32::MAX);
        let window = rows.first().map_or(nothing, |row| Window {
            reached: Position { available_at: row.reached_at, id: row.reached_id },
            tail: Position { available_at: row.tail_at, id: row.tail_id },
            ended: row.ended,
            aggregates: count(row.aggregates),
            waiting: count(row.waiting),
            excepted: count(row.excepted),
            lost_of_backlog: count(row.lost_of_backlog),
            lost_of_tail: count(row.lost_of_tail),
        });
        let messages = rows
            .into_iter()
            .filter_map(|row| {
                Some(Message {
                    id: row.id?,
                    lease_version: row.lease_version?,
                    attempts: row.attempts?,
                    aggregate_type: row.aggregate_type?,
                    aggregate_id: row.aggregate_id?,
                    event_type: row.event_type?,
                    payload: row.payload?,
                    headers_json: row.headers?,
                    first_tried: row.first_tried_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
                    age: Duration::try_from_secs_f64(row.age_seconds?).unwrap_or(Duration::MAX),
                })
            })
            .collect();
        Ok(Claim { messages, window })
    }
}
