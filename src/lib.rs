//! Ordered per-aggregate transactional outbox dispatch: PostgreSQL to Amazon SQS FIFO.
//!
//! A service writes a business change and its message in one transaction ([`enqueue`](fn@enqueue)). A
//! [`Dispatcher`] in any number of processes moves the committed rows to a [`Publisher`], at least once and in
//! order per aggregate.
//!
//! ```text
//!         claim.sql                one request in flight per aggregate           finalize.sql
//! outbox ----------> claimer --lanes--> publish (<=10 entries, <=1 MiB) --verdicts--> finalizer ----------> outbox
//!   ^   (short tx)      ^        continuous batching, N requests in flight        (batched, fenced, short tx)  |
//!   |                   |                                                                                      |
//!   +---- wake-up: jittered poll, finalized heads; maintenance: reap                                           |
//!   +----------------------------------------------------------------------------------------------------------+
//! ```
//!
//! # Promises
//!
//! * **P1 At least once.** A committed row ends `done` or `dead`, or is still `pending` or `processing`. Nothing is
//!   lost, whatever crashes.
//! * **P2 In order per aggregate.** The queue accepts a row of an aggregate for the first time only after every
//!   earlier row of it was accepted, or was skipped by a person. [`group_batching`](DispatcherConfig::group_batching),
//!   off by default, trades some of this for throughput.
//! * **P3 A dead row is a gate.** Nothing of its aggregate moves until a person retries or skips it. Other
//!   aggregates never notice.
//! * **P4 Fenced.** Only the holder of the current `lease_version` can finalize. An expired lease that nobody took
//!   over still finalizes: the version decides, not the clock.
//! * **P5 No transaction over the network.** Claim in a short transaction, publish without one, finalize in a short
//!   transaction. No connection is held while a broker is waited for.
//! * **P6 Database time only** for everything compared in SQL. A worker trusts its lease by a monotonic clock read
//!   *before* the claim was sent, and stops earlier than the lease ends.
//! * **P7 An outage spends no attempts.** Trouble of the broker, the network, the credentials or the queue brings no
//!   row nearer to `dead`. Only a message's own fault spends attempts.
//! * **P8 Bounded cost.** A claim costs what it returns: not the backlog, not the rows kept as `done`, not the depth of a
//!   hot aggregate, not the number of gated aggregates.
//! * **P9 A late send cannot reorder.** Deduplication ids are stable, so SQS drops a stale worker's late copy inside
//!   its 5-minute window; `publish timeout < lease << 5 min` is checked at start. Beyond the window a consumer's
//!   high-water mark drops it, because ids rise within an aggregate.
//!
//! # What is not promised
//!
//! Not exactly once: a consumer sees a message again whenever a reply or a worker was lost, and deduplicates by the
//! outbox id. Not order between aggregates. Not order between two transactions that insert for the same aggregate at
//! the same time: lock the aggregate's row first, since ids are drawn before commit. Not order inside a request that
//! fails in part, if group batching was asked for.
//!
//! # Reading order
//!
//! `message.rs`, `outcome.rs` (what each failure means), `store/sql/claim.sql`, `store/sql/finalize.sql`,
//! `dispatcher.rs`, `dispatcher/lane.rs`, `publisher/sqs.rs`. What a crash leaves behind: `docs/guarantees.md`.

pub mod backoff;
pub mod check;
pub mod config;
pub mod dispatcher;
pub mod enqueue;
pub mod message;
pub mod metrics;
pub mod migrate;
pub mod outcome;
pub mod publisher;
mod sendable;
pub mod store;

pub use check::{Check, State};
pub use config::{ConfigError, DispatcherConfig};
pub use dispatcher::{Dispatcher, DispatcherError, Summary};
pub use enqueue::{EnqueueError, enqueue, enqueue_many};
pub use message::{Message, MessageId, NewMessage, Status};
pub use outcome::{Outcome, Trouble};
pub use publisher::Publisher;
pub use store::{Store, StoreError};

// The Rust in the README is compiled with the other documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
