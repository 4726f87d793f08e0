//! One database a test, cloned from a template that is migrated once and keyed by the migrations' checksums.

use std::fmt::Write as _;

use ordered_outbox::Store;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

/// Which server to test on.
#[derive(Clone, Copy, Debug)]
pub enum Postgres {
    /// The main one, PostgreSQL 18.
    Latest,
    /// The oldest supported, PostgreSQL 15.
    Oldest,
}

impl Postgres {
    /// The servers to test on, oldest first, with their major versions. PostgreSQL 15 is left out only on a developer's
    /// machine that has none; `make test` says so at its end.
    pub fn all() -> Vec<(Self, i32)> {
        let has_oldest = std::env::var_os("DATABASE_URL_PG15").is_some() || std::env::var_os("CI").is_some();
        let oldest = has_oldest.then_some((Self::Oldest, 15));
        oldest.into_iter().chain([(Self::Latest, 18)]).collect()
    }

    fn url(self) -> String {
        let name = match self {
            Self::Latest => "DATABASE_URL",
            Self::Oldest => "DATABASE_URL_PG15",
        };
        std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with `make test`"))
    }
}

/// A database that is dropped with this value.
#[derive(Debug)]
pub struct Database {
    admin_url: String,
    name: String,
    url: String,
}

impl Database {
    /// A migrated, empty database on the main server.
    pub async fn new() -> Self {
        Self::on(Postgres::Latest).await
    }

    /// A migrated, empty database.
    pub async fn on(postgres: Postgres) -> Self {
        let admin_url = postgres.url();
        let template = template(&admin_url).await;
        Self::create(admin_url, &format!("TEMPLATE {template}")).await
    }

    /// A database in which nothing was ever migrated.
    pub async fn unmigrated(postgres: Postgres) -> Self {
        Self::create(postgres.url(), "").await
    }

    async fn create(admin_url: String, options: &str) -> Self {
        let name = format!("outbox_test_{}_{:016x}", std::process::id(), rand::random::<u64>());
        let mut admin = PgConnection::connect(&admin_url).await.unwrap();
        execute(&mut admin, format!("CREATE DATABASE {name} {options}")).await;
        let url = with_database(&admin_url, &name);
        Self { admin_url, name, url }
    }

    /// Its URL, for other processes.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A store with a small pool of its own.
    pub async fn store(&self) -> Store {
        Store::connect(&self.url, 16).await.unwrap()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin_url, name) = (self.admin_url.clone(), self.name.clone());
        // Drop is not async, and the test's own runtime may be gone: a thread with a runtime of its own
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut admin = PgConnection::connect(&admin_url).await.unwrap();
                execute(&mut admin, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
            });
        });
        if dropped.join().is_err() {
            eprintln!("database {} was left behind", self.name);
        }
    }
}

/// The name of the migrated template; makes it if it is not there.
async fn template(admin_url: &str) -> String {
    let mut name = "outbox_template".to_owned();
    for migration in sqlx::migrate!().iter() {
        for byte in migration.checksum.iter().take(4) {
            write!(name, "_{byte:02x}").unwrap();
        }
    }
    let mut admin = PgConnection::connect(admin_url).await.unwrap();
    // tests run in parallel, in several processes: one of them makes the template, the others wait here
    execute(&mut admin, "SELECT pg_advisory_lock(hashtext('outbox_template'))".to_owned()).await;
    let ready: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)")
            .bind(&name)
            .fetch_one(&mut admin)
            .await
            .unwrap();
    if !ready {
        execute(&mut admin, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        execute(&mut admin, format!("CREATE DATABASE {name}")).await;
        let store = Store::connect(&with_database(admin_url, &name), 1).await.unwrap();
        store.migrate().await.unwrap();
        store.pool().close().await;
        execute(&mut admin, format!("ALTER DATABASE {name} IS_TEMPLATE true")).await;
    }
    admin.close().await.unwrap();
    name
}

async fn execute(connection: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.unwrap();
}

fn with_database(url: &str, name: &str) -> String {
    let (server, _) = url.rsplit_once('/').expect("the URL names a database");
    format!("{server}/{name}")
}
