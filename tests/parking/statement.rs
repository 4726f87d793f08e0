//! The very statements of the store, in transactions that tests hold open, or held up behind their snapshot.

use ordered_outbox::{Message, Store};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments as _, AssertSqlSafe, Connection as _, Encode, PgConnection, Row as _, Type};
use tokio::task::JoinHandle;

use crate::connect;
use crate::support::{Database, LEASE, eventually};

pub(crate) const CLAIM: &str = include_str!("../../src/store/sql/claim.sql");
pub(crate) const FINALIZE: &str = include_str!("../../src/store/sql/finalize.sql");
pub(crate) const PARK: &str = include_str!("../../src/store/sql/park.sql");
pub(crate) const PURGE: &str = include_str!("../../src/store/sql/purge.sql");
pub(crate) const REAP: &str = include_str!("../../src/store/sql/reap.sql");
pub(crate) const RELEASE: &str = include_str!("../../src/store/sql/release.sql");
pub(crate) const RETRY: &str = include_str!("../../src/store/sql/retry.sql");
pub(crate) const SKIP: &str = include_str!("../../src/store/sql/skip.sql");
pub(crate) const SWEEP: &str = include_str!("../../src/store/sql/sweep.sql");
pub(crate) const UNPARK_NEXT: &str = include_str!("../../src/store/sql/unpark_next.sql");

/// A statement with its arguments.
pub(crate) struct Statement {
    sql: String,
    arguments: PgArguments,
}

impl Statement {
    pub(crate) fn new(sql: &str) -> Self {
        Self { sql: sql.to_owned(), arguments: PgArguments::default() }
    }

    pub(crate) fn with<'a, T>(mut self, argument: T) -> Self
    where
        T: Encode<'a, sqlx::Postgres> + Type<sqlx::Postgres>,
    {
        self.arguments.add(argument).unwrap();
        self
    }

    /// Parks whatever waits.
    pub(crate) fn park() -> Self {
        Self::new(PARK).with(chrono::DateTime::UNIX_EPOCH).with(0_i64).with(500_i64).with(0.0)
    }

    /// Claims heads with up to nine rows behind each, from the front, taking nothing over.
    pub(crate) fn claim() -> Self {
        Self::new(CLAIM)
            .with("w")
            .with(LEASE.as_secs_f64())
            .with(12)
            .with(100_i64)
            .with(10_i64)
            .with(1_i64 << 30)
            .with(1_000_i64)
            .with(chrono::DateTime::UNIX_EPOCH)
            .with(0_i64)
            .with(false)
            .with(100_i64)
            .with(0_i64)
            .with(None::<chrono::DateTime<chrono::Utc>>)
            .with(None::<i64>)
            .with(1_000_i64)
            .with(0_i64)
            .with(Vec::<String>::new())
    }

    /// This message is done, and was the last of its lane.
    pub(crate) fn done(message: &Message) -> Self {
        Self::new(FINALIZE)
            .with(vec![message.id])
            .with(vec![message.lease_version])
            .with(vec!["done".to_owned()])
            .with(vec![0.0])
            .with(vec![None::<String>])
            .with(vec![None::<String>])
            .with(vec![None::<String>])
            .with(vec![true])
            .with(vec![false])
    }

    pub(crate) fn release(message: &Message) -> Self {
        Self::new(RELEASE)
            .with(vec![message.id])
            .with(vec![message.lease_version])
            .with(vec![message.first_tried.is_none()])
    }

    /// Declares dead what has spent its only attempt.
    pub(crate) fn reap() -> Self {
        Self::new(REAP).with(1).with(100_i64)
    }

    /// Deletes everything that is done.
    pub(crate) fn purge() -> Self {
        Self::new(PURGE).with(0.0).with(100_i64)
    }

    pub(crate) fn sweep(limit: i64) -> Self {
        Self::new(SWEEP).with("").with(limit)
    }

    /// With a part of its text changed.
    pub(crate) fn changed(mut self, from: &str, to: &str) -> Self {
        assert!(self.sql.contains(from), "{from} is not in {}", self.sql);
        self.sql = self.sql.replacen(from, to, 1);
        self
    }

    pub(crate) async fn run(self, connection: &mut PgConnection) -> Vec<PgRow> {
        self.try_run(connection).await.unwrap()
    }

    async fn try_run(self, connection: &mut PgConnection) -> sqlx::Result<Vec<PgRow>> {
        sqlx::query_with(AssertSqlSafe(self.sql), self.arguments).fetch_all(connection).await
    }

    /// Begins it on a connection of its own, and holds it up behind its snapshot and ahead of its locks.
    pub(crate) async fn hold_up(self, database: &Database, store: &Store) -> HeldUp {
        let [gate, conjunct] = ["pg_advisory_xact_lock(7)", "(SELECT count(*) FROM gate) = 1"];
        let first = if self.sql.contains("\nWITH RECURSIVE ") { "\nWITH RECURSIVE " } else { "\nWITH " };
        let gated = Self { sql: self.sql.clone(), arguments: PgArguments::default() }
            .changed(first, &format!("{first}gate AS MATERIALIZED (SELECT {gate}), "));
        let gated = if gated.sql.contains(" AS is_mine") {
            gated.changed(" AS is_mine", " AS is_mine FROM gate")
        } else if gated.sql.contains("unnest(") {
            // the first array of a finalize or a release
            gated.changed("unnest($1::bigint[],", "unnest((SELECT $1::bigint[] FROM gate),")
        } else {
            gated.changed("WHERE o.status = ", &format!("WHERE {conjunct} AND o.status = "))
        };
        let mut doorkeeper = connect(database).await;
        sqlx::query("SELECT pg_advisory_lock(7)").execute(&mut doorkeeper).await.unwrap();
        let mut connection = connect(database).await;
        let statement = Self { sql: gated.sql, arguments: self.arguments };
        let running = tokio::spawn(async move { statement.try_run(&mut connection).await });
        waits(store, "advisory").await;
        HeldUp { doorkeeper, running }
    }
}

/// A statement that has its snapshot and none of its locks.
pub(crate) struct HeldUp {
    doorkeeper: PgConnection,
    running: JoinHandle<sqlx::Result<Vec<PgRow>>>,
}

impl HeldUp {
    /// Lets it go on, to its end.
    pub(crate) async fn go_on(self) -> Vec<PgRow> {
        self.try_go_on().await.unwrap()
    }

    pub(crate) async fn try_go_on(self) -> sqlx::Result<Vec<PgRow>> {
        self.doorkeeper.close().await.unwrap();
        self.running.await.unwrap()
    }
}

/// How many rows a park parked.
pub(crate) fn rows_parked(answer: &[PgRow]) -> i64 {
    answer[0].get("parked!")
}

/// The heads a sweep found.
pub(crate) fn stranded(answer: &[PgRow]) -> Vec<i64> {
    answer[0].get("unparked!")
}

/// The rows of an answer that has nothing but ids.
pub(crate) fn only_ids(answer: &[PgRow]) -> Vec<i64> {
    answer.iter().map(|row| row.get(0)).collect()
}

/// Until a statement waits for a lock of this kind: `advisory`, or `transactionid` for a row's.
pub(crate) async fn waits(store: &Store, kind: &'static str) {
    eventually("it waits for a lock", || async {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid) \
             WHERE l.locktype = $1 AND NOT l.granted AND a.datname = current_database()",
        )
        .bind(kind)
        .fetch_one(store.pool())
        .await
        .unwrap();
        waiting == 1
    })
    .await;
}

/// The messages a claim took, by the ids it answered.
pub(crate) fn claimed_ids(answer: &[PgRow]) -> Vec<i64> {
    answer.iter().filter_map(|row| row.get("id?")).collect()
}
