//! A database of the demo's own, so that nobody's tables are touched.

use std::str::FromStr as _;

use anyhow::{Context as _, Result};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection};

/// Any number that no other advisory lock uses.
const TURN: i64 = 0x6f75_7462_6f78;

/// The right to use the two queues: two demos at once would take each other's messages.
pub(crate) struct Turn {
    admin: PgConnection,
    server: PgConnectOptions,
}

impl Turn {
    pub(crate) async fn wait(database_url: &str) -> Result<Self> {
        let server = PgConnectOptions::from_str(database_url).context("DATABASE_URL is not a PostgreSQL URL")?;
        let mut admin = PgConnection::connect_with(&server)
            .await
            .with_context(|| format!("cannot connect to PostgreSQL at {}:{}", server.get_host(), server.get_port()))?;
        let free: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(TURN).fetch_one(&mut admin).await?;
        if !free {
            eprintln!("demo: another demo uses these queues; waiting for its end");
            sqlx::query("SELECT pg_advisory_lock($1)").bind(TURN).execute(&mut admin).await?;
        }
        Ok(Self { admin, server })
    }
}

/// The database. Holds its turn until it is dropped.
pub(crate) struct Scratch {
    turn: Turn,
    name: String,
}

impl Scratch {
    pub(crate) async fn create(mut turn: Turn) -> Result<Self> {
        let name = format!("outbox_demo_{:016x}", rand::random::<u64>());
        execute(&mut turn.admin, format!("CREATE DATABASE {name}"))
            .await
            .context("cannot create the demo's database: the user of DATABASE_URL needs CREATEDB")?;
        Ok(Self { turn, name })
    }

    /// The database's name, which also names this run.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn options(&self) -> PgConnectOptions {
        self.turn.server.clone().database(&self.name)
    }

    /// For other processes.
    pub(crate) fn url(&self) -> String {
        self.options().to_url_lossy().to_string()
    }

    pub(crate) async fn drop(mut self) -> Result<()> {
        // FORCE: a killed dispatcher's connections can outlive it for a moment.
        execute(&mut self.turn.admin, format!("DROP DATABASE {} WITH (FORCE)", self.name))
            .await
            .with_context(|| format!("cannot drop the demo's database {}: drop it by hand", self.name))?;
        self.turn.admin.close().await.context("cannot close the connection to PostgreSQL")
    }
}

async fn execute(connection: &mut PgConnection, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(|_| ())
}
