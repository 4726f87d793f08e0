//! A database of a bench's own, loaded once and copied for each run, so that every run begins with the same table.

use ordered_outbox::Store;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};

use super::progress;
use super::table::Table;

/// A database that is dropped with this value, also when the bench panics.
pub struct Database {
    admin_url: String,
    name: String,
    url: String,
}

/// What PostgreSQL counted of a table.
pub struct Counted {
    pub dead_rows: i64,
    pub updates: i64,
}

impl Database {
    async fn create(options: &str) -> Self {
        let admin_url = std::env::var("DATABASE_URL").expect("DATABASE_URL is not set: run `make bench`");
        let name = format!("outbox_bench_{}_{:08x}", std::process::id(), rand::random::<u32>());
        let mut admin = PgConnection::connect(&admin_url).await.unwrap();
        execute(&mut admin, &format!("CREATE DATABASE {name} {options}")).await;
        let url = format!("{}/{name}", admin_url.rsplit_once('/').expect("the URL names a database").0);
        Self { admin_url, name, url }
    }

    /// Migrated and filled.
    pub async fn load(table: &Table) -> Self {
        let _progress = progress::step(&format!("loading {}", table.name));
        let database = Self::create("").await;
        let store = Store::connect(&database.url, 1).await.unwrap();
        store.migrate().await.unwrap();
        store.pool().close().await;
        let mut connection = database.connection().await;
        execute(
            &mut connection,
            "ALTER TABLE outbox SET (autovacuum_enabled = false, toast.autovacuum_enabled = false); \
             SET synchronous_commit = off",
        )
        .await;
        for statement in &table.statements {
            execute(&mut connection, statement).await;
        }
        execute(&mut connection, "VACUUM (ANALYZE) outbox").await;
        // what the loading has yet to write is not for the runs to wait for
        if let Err(error) = sqlx::raw_sql("CHECKPOINT").execute(&mut connection).await {
            eprintln!("no checkpoint before the runs, which may be slower for it: {error}");
        }
        connection.close().await.unwrap();
        database
    }

    /// The same once more. Nobody may be connected to this one.
    pub async fn copy(&self) -> Self {
        Self::create(&format!("TEMPLATE {}", self.name)).await
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// As a dispatcher connects.
    pub async fn store(&self, connections: u32) -> Store {
        Store::connect(&self.url, connections).await.unwrap()
    }

    /// As anybody connects.
    pub async fn plain_pool(&self, connections: u32) -> PgPool {
        PgPoolOptions::new().max_connections(connections).connect(&self.url).await.unwrap()
    }

    pub async fn connection(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.unwrap()
    }

    /// Bytes of write-ahead log between two calls are what the whole server wrote in between.
    pub async fn wal_position(&self) -> i64 {
        let mut admin = PgConnection::connect(&self.admin_url).await.unwrap();
        let position = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
        sqlx::query_scalar(position).fetch_one(&mut admin).await.unwrap()
    }

    /// The table's counters. Connections report theirs when they end: close them before.
    pub async fn counted(&self) -> Counted {
        let mut admin = PgConnection::connect(&self.admin_url).await.unwrap();
        let connected = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1";
        while sqlx::query_scalar::<_, i64>(connected).bind(&self.name).fetch_one(&mut admin).await.unwrap() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let counted = "SELECT n_dead_tup, n_tup_upd FROM pg_stat_user_tables WHERE relname = 'outbox'";
        let mut connection = self.connection().await;
        let (dead_rows, updates) = sqlx::query_as(counted).fetch_one(&mut connection).await.unwrap();
        Counted { dead_rows, updates }
    }

    /// A transaction that sees the table as it is now, for as long as the connection lives.
    pub async fn old_snapshot(&self) -> PgConnection {
        let mut connection = self.connection().await;
        execute(&mut connection, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox LIMIT 1").await;
        connection
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin_url, name) = (self.admin_url.clone(), self.name.clone());
        // Drop is not async, and this may be inside of a runtime: a thread with a runtime of its own
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&admin_url).await.unwrap();
                execute(&mut admin, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
            });
        });
        if dropped.join().is_err() {
            eprintln!("database {} was left behind", self.name);
        }
    }
}

/// Runs statements of the bench's own making.
pub async fn execute(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
}
