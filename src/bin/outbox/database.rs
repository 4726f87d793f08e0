//! Where the database is, without a password on the command line.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use ordered_outbox::Store;

use crate::failure::BadUsage;

/// Enough for a command that does one thing at a time.
const CONNECTIONS: u32 = 1;

/// Where the database is.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct DatabaseArgs {
    /// File that holds the database URL, for example a mounted secret; goes before `DATABASE_URL`
    #[arg(long, global = true, env = "DATABASE_URL_FILE", hide_env_values = true, value_name = "PATH")]
    database_url_file: Option<OsString>,
}

impl DatabaseArgs {
    /// The database, if it has the schema that this program needs.
    pub(crate) async fn open(&self) -> anyhow::Result<Store> {
        let store = self.open_unchecked().await?;
        store.check_schema().await?;
        Ok(store)
    }

    /// The database, whatever its schema.
    pub(crate) async fn open_unchecked(&self) -> anyhow::Result<Store> {
        Ok(Store::connect(&self.url()?, CONNECTIONS).await?)
    }

    /// Where it is, as the command line or the environment say.
    pub(crate) fn url(&self) -> anyhow::Result<String> {
        // a set but empty variable is how a compose file says "not set"
        if let Some(path) = self.database_url_file.as_ref().filter(|path| !path.is_empty()) {
            return read_url(Path::new(path));
        }
        match std::env::var("DATABASE_URL") {
            Ok(url) if !url.is_empty() => Ok(url),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(BadUsage::new("DATABASE_URL is not UTF-8: set it again").into())
            }
            _ => Err(BadUsage::new(
                "DATABASE_URL is not set: set it to postgres://user:password@host:5432/database, or name a file that \
                 holds it by --database-url-file",
            )
            .into()),
        }
    }
}

fn read_url(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .with_context(|| BadUsage::new(format!("cannot read the database URL from {}", path.display())))?;
    match text.trim_end_matches(['\n', '\r']) {
        "" => Err(BadUsage::new(format!("{} is empty: write the database URL into it", path.display())).into()),
        url => Ok(url.to_owned()),
    }
}
