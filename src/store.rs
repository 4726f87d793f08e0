//! The outbox table, seen from the dispatcher: every transition of a row is one statement of `store/sql/`.
//!
//! Each call is one short transaction (P5). Times are the database's (P6). A transition whose precondition no longer
//! holds changes nothing and says so.

use std::io::ErrorKind;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, Executor as _, PgConnection, PgPool};

use crate::migrate::{self, MigrateError, Migrated, SchemaError};

mod check;
mod claim;
mod finalize;
mod gates;
mod park;
mod position;
mod purge;
mod reap;
mod session;
mod show;
mod source;
mod stats;

pub use claim::{Claim, ClaimRequest, Look, Window};
pub use finalize::{Finalize, Finalized, Release};
pub use gates::{AnswerError, Gate};
pub use park::{Parked, Swept};
pub use position::Position;
pub use session::Session;
pub use show::{Head, Row};
pub use stats::{AttemptsCount, Stats, StatusCount};

/// What a connection of a dispatcher is set to.
///
/// The statements here are written so that there is one good plan for each, whatever the statistics say. `enable_seqscan`
/// keeps PostgreSQL from another one while the table is empty, and a generic plan then is as good as one made afresh, which
/// costs 1 to 3 ms a claim: more than the claim. Read committed, since each statement is a transaction and means to see
/// what is there now.
const SESSION: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off; \
                       SET default_transaction_isolation = 'read committed'";

/// How long a caller waits for a free connection, and a new connection for the server.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);

/// The database did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL cannot be read. Its text is not repeated here: it may hold a password.
    #[error(
        "DATABASE_URL is not a PostgreSQL URL: write it as postgres://user:password@host:5432/database \
         (percent-encode special characters of the password)"
    )]
    Url,
    /// No connection could be opened.
    #[error("cannot connect to PostgreSQL at {target}: {source}; check DATABASE_URL and that the server runs")]
    Connect {
        /// `user@host:port/database`.
        target: String,
        /// What the driver said.
        source: sqlx::Error,
    },
    /// A statement failed.
    #[error("{step}: {source}")]
    Query {
        /// The store operation.
        step: &'static str,
        /// What the driver said.
        source: sqlx::Error,
    },
    /// A row holds what this version does not know.
    #[error("{step}: row {id}: {reason}")]
    Row {
        /// The store operation.
        step: &'static str,
        /// The row.
        id: i64,
        /// What it holds.
        reason: String,
    },
}

impl StoreError {
    /// Whether the fault lies with a row's values and not with the database: a data exception, a violated constraint, or
    /// what somebody's trigger raises (SQLSTATE classes 22, 23 and P0). Repeating the statement would fail again.
    #[must_use]
    pub fn is_of_a_row(&self) -> bool {
        let Self::Query { source: sqlx::Error::Database(error), .. } = self else { return false };
        error.code().is_some_and(|code| ["22", "23", "P0"].iter().any(|class| code.starts_with(class)))
    }
}

/// Whether what this connection leads to can be written to.
async fn is_writable(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let read_only = sqlx::query_file_scalar!("src/store/sql/read_only.sql").fetch_one(connection).await?;
    Ok(read_only == "off")
}

/// Where a connection leads, without the password.
fn target(options: &PgConnectOptions) -> String {
    let (user, host, port) = (options.get_username(), options.get_host(), options.get_port());
    format!("{user}@{host}:{port}/{}", options.get_database().unwrap_or(user))
}

/// Names the step that failed.
fn failed(step: &'static str) -> impl Fn(sqlx::Error) -> StoreError {
    move |source| StoreError::Query { step, source }
}

/// The outbox of one database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
}

impl Store {
    /// Uses a pool the caller has. A dispatcher needs three connections: claims, finalizes and maintenance overlap.
    ///
    /// Set `enable_seqscan = off` and `plan_cache_mode = force_generic_plan` on them, as [`connect`](Self::connect) does;
    /// or `enable_bitmapscan = off` and `plan_cache_mode = force_custom_plan`. A plan made while the table was empty, or
    /// while nothing but the empty table was analyzed, may read every due row once it is not.
    ///
    /// Close connections that only read when they come back, as [`connect`](Self::connect) does: after a failover they
    /// would be used for as long as they live.
    #[must_use]
    pub const fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Opens a pool of up to `max_connections` and checks that the server answers.
    ///
    /// # Errors
    /// The URL is malformed, or the server cannot be reached within 10 s. Neither error repeats the password.
    pub async fn connect(url: &str, max_connections: u32) -> Result<Self, StoreError> {
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(StoreError::Url);
        }
        let options = PgConnectOptions::from_str(url).map_err(|_| StoreError::Url)?.application_name("outbox");
        let target = target(&options);
        // A pool repeats a refused connection until its time is up and then says only that. One connection ahead of it
        // fails at once, and with the reason.
        let answered =
            tokio::time::timeout(ACQUIRE_TIMEOUT, async { PgConnection::connect_with(&options).await?.close().await });
        let answered = answered.await.unwrap_or_else(|_| Err(std::io::Error::from(ErrorKind::TimedOut).into()));
        answered.map_err(|source| StoreError::Connect { target, source })?;
        let pool = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // Every caller repeats a failed statement anyway: no ping before each one.
            .test_before_acquire(false)
            // Not startup parameters: poolers refuse those.
            .after_connect(|connection, _| {
                Box::pin(async move {
                    connection.execute(SESSION).await?;
                    Ok(())
                })
            })
            // After a failover it leads to a server that only reads, for as long as it lives. A new one finds the primary.
            .after_release(|connection, _| Box::pin(is_writable(connection)))
            .connect_lazy_with(options);
        Ok(Self { pool })
    }

    /// The pool, for the caller's own transactions.
    #[must_use]
    pub const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Applies missing migrations; see [`migrate::run`].
    ///
    /// # Errors
    /// As [`migrate::run`].
    pub async fn migrate(&self) -> Result<Migrated, MigrateError> {
        migrate::run(&self.pool).await
    }

    /// Whether the schema fits this program; see [`migrate::check`].
    ///
    /// # Errors
    /// As [`migrate::check`].
    pub async fn check_schema(&self) -> Result<(), SchemaError> {
        migrate::check(&self.pool).await
    }
}
