//! The schema: brings a database up to date, and tells whether it is.

use sqlx::PgPool;
use sqlx::migrate::{MigrateError as SqlxMigrateError, Migrator};

/// Lowest and highest PostgreSQL major version this is tested on.
pub const POSTGRES_VERSIONS: std::ops::RangeInclusive<i32> = 15..=18;

/// SQLSTATE of a table that does not exist.
const UNDEFINED_TABLE: &str = "42P01";

/// A migration failed or was refused. What had been applied before stays applied.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The server is older than this project is tested on.
    #[error("PostgreSQL {found} is too old: use version {oldest} or later", oldest = POSTGRES_VERSIONS.start())]
    ServerTooOld {
        /// The server's major version.
        found: i32,
    },
    /// A newer release migrated this database.
    #[error(
        "the database has schema version {found}, this program knows up to {known}: use the newer program, \
         migrations only go forward"
    )]
    Newer {
        /// Version in the database.
        found: i64,
        /// Version this program was built with.
        known: i64,
    },
    /// A migration's own statement failed.
    #[error("migrate: {0}")]
    Failed(#[from] SqlxMigrateError),
    /// The database did not answer.
    #[error("read the schema version: {0}")]
    Query(#[from] sqlx::Error),
}

/// The database is not at the version this program needs.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    /// No migration was ever applied.
    #[error("the database has no outbox: run `outbox migrate` first")]
    Unmigrated,
    /// An older release migrated this database.
    #[error("the database has schema version {found}, this program needs {known}: run `outbox migrate`")]
    Older {
        /// Version in the database.
        found: i64,
        /// Version this program was built with.
        known: i64,
    },
    /// A newer release migrated this database.
    #[error("the database has schema version {found}, this program knows up to {known}: use the newer program")]
    Newer {
        /// Version in the database.
        found: i64,
        /// Version this program was built with.
        known: i64,
    },
    /// The database did not answer.
    #[error("read the schema version: {0}")]
    Query(#[from] sqlx::Error),
}

/// What a migration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// Schema version before; 0 if there was none.
    pub from: i64,
    /// Schema version now.
    pub to: i64,
}

/// The outbox lives in an application's database, which may well run sqlx migrations of its own under the default
/// table name.
fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!();
    migrator.dangerous_set_table_name("outbox_migrations");
    migrator
}

/// The schema version this program was built with.
#[must_use]
pub fn known_version() -> i64 {
    migrator().iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Applies what is missing; several callers at once wait for each other.
///
/// # Errors
/// The server is too old, the schema is newer than this program, or a statement failed.
pub async fn run(pool: &PgPool) -> Result<Migrated, MigrateError> {
    let found = sqlx::query_file_scalar!("src/store/sql/server_version.sql").fetch_one(pool).await?;
    if found < *POSTGRES_VERSIONS.start() {
        return Err(MigrateError::ServerTooOld { found });
    }
    let known = known_version();
    let from = version(pool).await?.unwrap_or(0);
    if from > known {
        return Err(MigrateError::Newer { found: from, known });
    }
    migrator().run(pool).await?;
    Ok(Migrated { from, to: known })
}

/// Whether the database has exactly the schema this program needs.
///
/// # Errors
/// It has none, an older or a newer one, or it did not answer.
pub async fn check(pool: &PgPool) -> Result<(), SchemaError> {
    let known = known_version();
    match version(pool).await? {
        None => Err(SchemaError::Unmigrated),
        Some(found) if found < known => Err(SchemaError::Older { found, known }),
        Some(found) if found > known => Err(SchemaError::Newer { found, known }),
        Some(_) => Ok(()),
    }
}

async fn version(pool: &PgPool) -> Result<Option<i64>, sqlx::Error> {
    match sqlx::query_file_scalar!("src/store/sql/schema_version.sql").fetch_one(pool).await {
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(UNDEFINED_TABLE) => Ok(None),
        other => other,
    }
}
