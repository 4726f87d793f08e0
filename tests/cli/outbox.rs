//! Runs the program, and the outboxes it is run on.

use std::fmt;
use std::path::Path;

use ordered_outbox::outcome::Verdict;
use ordered_outbox::store::Finalize;
use ordered_outbox::{MessageId, Store};

use crate::support::{Database, request};

/// The program, with nothing of the environment but what a test gives it.
pub(crate) struct Outbox {
    command: assert_cmd::Command,
}

impl Outbox {
    /// Without a database.
    pub(crate) fn new() -> Self {
        let mut command = assert_cmd::cargo::cargo_bin_cmd!("outbox");
        command.env_clear();
        Self { command }
    }

    /// On this database.
    pub(crate) fn on(database: &Database) -> Self {
        Self::new().env("DATABASE_URL", database.url())
    }

    /// With the SQS stand-in of the tests.
    pub(crate) fn with_aws(self) -> Self {
        let names = ["AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
        names.iter().fold(self, |outbox, name| {
            let value =
                std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with `make test`"));
            outbox.env(name, &value)
        })
    }

    /// With a variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// With standard input.
    pub(crate) fn stdin(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.command.write_stdin(input);
        self
    }

    /// Runs to its end.
    pub(crate) fn run(mut self, args: &[&str]) -> Ran {
        let output = self.command.args(args).output().unwrap();
        Ran {
            code: output.status.code().expect("the program ended by itself"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// What a run left behind.
pub(crate) struct Ran {
    /// Exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self}"))
    }

    /// The error text of `--json`.
    pub(crate) fn json_error(&self) -> String {
        let error: serde_json::Value = serde_json::from_str(self.stderr.trim()).unwrap();
        error["error"].as_str().unwrap().to_owned()
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.stdout)?;
        for line in self.stderr.lines() {
            writeln!(f, "stderr: {line}")?;
        }
        write!(f, "exit {}", self.code)
    }
}

/// Times and ages, which differ from run to run, and all else that does.
pub(crate) fn filtered(assert: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", "TIME");
    settings.add_filter(r#"(seconds":)\d+\.\d+"#, "${1}SECONDS");
    settings.add_filter(r"\b\d+s( +\d+ )", "AGE$1");
    settings.add_filter(r"(oldest undelivered +)\d+s", "${1}AGE");
    settings.add_filter(r"127\.0\.0\.1:\d+", "HOST:PORT");
    settings.add_filter(r"outbox_test_\w+", "DATABASE");
    settings.bind(assert);
}

/// A dead message of each aggregate, its head.
pub(crate) async fn die(store: &Store, error: &str) -> Vec<MessageId> {
    let claimed = store.claim(&request("w1", 100)).await.unwrap().messages;
    let verdicts: Vec<_> =
        claimed.iter().map(|message| Finalize::new(message, Verdict::Dead { error: error.into() })).collect();
    store.finalize(&verdicts).await.unwrap();
    claimed.iter().map(|message| message.id).collect()
}

/// Publishes the head of each aggregate, as far as the database can tell.
pub(crate) async fn publish_heads(store: &Store) {
    let claimed = store.claim(&request("w1", 100)).await.unwrap().messages;
    let done = Verdict::Done { broker_message_id: Some("m-1".into()), broker_sequence: Some("42".into()) };
    let verdicts: Vec<_> = claimed.iter().map(|message| Finalize::new(message, done.clone())).collect();
    store.finalize(&verdicts).await.unwrap();
}

/// A file that is removed with this value.
pub(crate) struct TempFile(std::path::PathBuf);

impl TempFile {
    /// Holds `contents`.
    pub(crate) fn new(contents: impl AsRef<[u8]>) -> Self {
        let name = format!("outbox-test-{}-{:016x}", std::process::id(), rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, contents).unwrap();
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &str {
        Path::to_str(&self.0).unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            eprintln!("{} was left behind: {error}", self.0.display());
        }
    }
}
