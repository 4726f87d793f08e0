//! The `outbox` command line, used as an operator would.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

/// The program, pointed at the demo's database.
pub(crate) struct Outbox {
    program: PathBuf,
    database_url: String,
}

impl Outbox {
    /// The program that Cargo built beside this example: `target/debug/outbox` for `target/debug/examples/demo`.
    pub(crate) fn find() -> Result<PathBuf> {
        let own = std::env::current_exe().context("cannot tell where this program lies")?;
        let program = own
            .parent()
            .and_then(|examples| examples.parent())
            .map(|target| target.join(format!("outbox{}", std::env::consts::EXE_SUFFIX)))
            .context("this program lies in no target folder")?;
        ensure!(program.is_file(), "{} is missing: run `cargo build --bin outbox` first", program.display());
        Ok(program)
    }

    pub(crate) const fn new(program: PathBuf, database_url: String) -> Self {
        Self { program, database_url }
    }

    /// The command, not started. It dies with the demo, whichever way the demo ends.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        // The settings are the demo's own, whatever the shell has for another outbox.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OUTBOX_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env("DATABASE_URL", &self.database_url)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs it to its end and returns what it printed.
    pub(crate) async fn output(&self, arguments: &[&str]) -> Result<String> {
        let shown = arguments.join(" ");
        let output =
            self.command(arguments).output().await.with_context(|| format!("cannot start `outbox {shown}`"))?;
        ensure!(
            output.status.success(),
            "`outbox {shown}` ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        String::from_utf8(output.stdout).with_context(|| format!("`outbox {shown}` printed no UTF-8"))
    }
}
