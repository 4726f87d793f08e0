//! Runs the program and watches its memory.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use super::fixtures::sqs::Sqs;
use super::support::database::Database;

pub(crate) struct Peak {
    pub(crate) mib: f64,
    pub(crate) published: u64,
    pub(crate) took: Duration,
}

/// Until nothing is left, or it is stopped.
pub(crate) async fn run(database: &Database, sqs: &Sqs, queue_url: &str, stop_after: Duration) -> Peak {
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(["--json", "--log", "error,sqlx=error", "run", "--drain", "--queue-url", queue_url])
        .env_clear()
        .env("DATABASE_URL", database.url())
        .envs([("AWS_ENDPOINT_URL", sqs.endpoint().as_str()), ("AWS_REGION", "us-east-1")])
        .envs([("AWS_ACCESS_KEY_ID", "bench"), ("AWS_SECRET_ACCESS_KEY", "bench")])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().expect("it is piped");
    let (kib, mut is_stopped) = (&mut 0, false);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if let Some(now) = peak_kib(&child) {
            *kib = now;
        }
        if start.elapsed() > stop_after && !is_stopped {
            terminate(&child).await;
            is_stopped = true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let took = start.elapsed();
    assert!(status.success(), "the program ended with {status}");
    let mut summary = Vec::new();
    stdout.read_to_end(&mut summary).await.unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&summary).unwrap();
    let published = summary["published"].as_u64().expect("the program tells how many it published");
    Peak { mib: f64::from(*kib) / 1024.0, published, took }
}

/// `None` once it has ended.
fn peak_kib(child: &Child) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()?)).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

async fn terminate(child: &Child) {
    let id = child.id().expect("it runs").to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
}
