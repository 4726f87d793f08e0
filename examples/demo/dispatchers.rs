//! Three `outbox run` processes, one of which does not live to see the end.

use std::convert::Infallible;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::future::select_all;
use serde::Serialize;
use sqlx::PgPool;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;

use crate::board::Board;
use crate::outbox::Outbox;
use crate::queues::Queues;

const COUNT: usize = 3;
/// Short, so that the killed one's messages are taken over while the audience still watches.
const LEASE: &str = "8s";
const PUBLISH_TIMEOUT: &str = "2s";
const POLL_INTERVAL: &str = "200ms";
/// Few requests in flight make full ones: LocalStack answers them one after the other anyway.
const CONCURRENCY: &str = "2";
/// A dispatcher finishes what is in flight before it ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Statements that a stopped process had sent still run to their end on the server.
const SETTLE: Duration = Duration::from_millis(100);

pub(crate) struct Fleet {
    members: Vec<Member>,
}

struct Member {
    name: String,
    child: Child,
    log: PathBuf,
}

/// The end of a dispatcher.
#[derive(Clone, Serialize)]
pub(crate) struct End {
    pub(crate) name: String,
    pub(crate) status: String,
    pub(crate) ok: bool,
}

/// The one that was killed.
#[derive(Clone, Serialize)]
pub(crate) struct Kill {
    pub(crate) name: String,
    pub(crate) seconds: f64,
    pub(crate) delivered_before: u64,
    /// Rows it left `processing`.
    pub(crate) leases_left: i64,
}

impl Fleet {
    pub(crate) fn start(outbox: &Outbox, queues: &Queues, logs: &Path, board: &Board) -> Result<Self> {
        let orders = format!("order={}", queues.orders);
        let payments = format!("payment={}", queues.payments);
        let mut members = Vec::new();
        for number in 1..=COUNT {
            let name = format!("dispatcher-{number}");
            let log = logs.join(format!("{name}.log"));
            let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
            let child = outbox
                .command(&["run", "--route", &orders, "--route", &payments, "--owner", &name])
                .args(["--lease", LEASE, "--publish-timeout", PUBLISH_TIMEOUT, "--poll-interval", POLL_INTERVAL])
                .args(["--concurrency", CONCURRENCY])
                .stdout(file.try_clone()?)
                .stderr(file)
                .spawn()
                .with_context(|| format!("cannot start {name}"))?;
            board.state(&name, "runs");
            members.push(Member { name, child, log });
        }
        Ok(Self { members })
    }

    /// Kills one when half of the messages were received, and watches the others. Ends only with an error: a dispatcher
    /// is not supposed to end by itself.
    pub(crate) async fn lose_one(
        &mut self,
        pool: &PgPool,
        board: &Board,
        killed: oneshot::Sender<Kill>,
    ) -> Result<Infallible> {
        tokio::select! {
            () = board.until(|board, delivered| delivered.total() >= board.expected() / 2) => {}
            error = self.unexpected_end() => return Err(error),
        }
        let kill = self.kill_a_holder(pool, board).await?;
        board.state(&kill.name, "killed");
        board.say(&format!("SIGKILL to {}, which held {} leases", kill.name, kill.leases_left));
        ensure!(killed.send(kill).is_ok(), "nobody waits for the kill");
        Err(self.unexpected_end().await)
    }

    /// Stops the process first and looks at what it holds then: a running one could finalize its last lease between
    /// the look and the kill, and the kill would prove nothing.
    async fn kill_a_holder(&mut self, pool: &PgPool, board: &Board) -> Result<Kill> {
        loop {
            if let Some(place) = self.busiest(pool).await? {
                let member = &mut self.members[place];
                member.signal("STOP").await?;
                tokio::time::sleep(SETTLE).await;
                let leases_left = member.leases(pool).await?;
                if leases_left > 0 {
                    let (seconds, delivered_before) = (board.elapsed().as_secs_f64(), board.delivered().total());
                    member.child.kill().await.with_context(|| format!("cannot kill {}", member.name))?;
                    let name = self.members.remove(place).name;
                    return Ok(Kill { name, seconds, delivered_before, leases_left });
                }
                member.signal("CONT").await?;
            }
            if board.delivered().total() >= board.expected() - 1 {
                bail!("everything was delivered before a dispatcher could be caught with a lease");
            }
            tokio::time::sleep(SETTLE / 10).await;
        }
    }

    /// The one that holds the most leases now.
    async fn busiest(&self, pool: &PgPool) -> Result<Option<usize>> {
        let owner: Option<String> = sqlx::query_scalar(
            "SELECT lease_owner FROM outbox WHERE status = 'processing' GROUP BY lease_owner ORDER BY count(*) DESC LIMIT 1",
        )
        .fetch_optional(pool)
        .await
        .context("cannot look for leases")?;
        Ok(self.members.iter().position(|member| Some(&member.name) == owner.as_ref()))
    }

    async fn unexpected_end(&mut self) -> anyhow::Error {
        let waits = self.members.iter_mut().map(|member| {
            Box::pin(async move {
                let status = member.child.wait().await;
                anyhow!("{} ended by itself with {}:\n{}", member.name, describe(status), tail(&member.log))
            })
        });
        select_all(waits).await.0
    }

    /// SIGTERM to all that still run; waits for their end.
    pub(crate) async fn stop(&mut self, board: &Board) -> Result<Vec<End>> {
        for member in &self.members {
            member.signal("TERM").await?;
            board.state(&member.name, "stops");
        }
        let mut ends = Vec::new();
        for member in &mut self.members {
            let status = tokio::time::timeout(STOP_TIMEOUT, member.child.wait())
                .await
                .with_context(|| format!("{} did not end within {STOP_TIMEOUT:?} of SIGTERM", member.name))?;
            let ok = status.as_ref().is_ok_and(ExitStatus::success);
            board.state(&member.name, "ended");
            ends.push(End { name: member.name.clone(), status: describe(status), ok });
        }
        Ok(ends)
    }
}

impl Member {
    async fn leases(&self, pool: &PgPool) -> Result<i64> {
        sqlx::query_scalar("SELECT count(*) FROM outbox WHERE status = 'processing' AND lease_owner = $1")
            .bind(&self.name)
            .fetch_one(pool)
            .await
            .context("cannot count leases")
    }

    /// By the command, since a signal by system call needs `unsafe` or another crate.
    async fn signal(&self, signal: &str) -> Result<()> {
        let pid = self.child.id().with_context(|| format!("{} has ended", self.name))?;
        let status = Command::new("kill")
            .args([format!("-{signal}"), pid.to_string()])
            .stderr(Stdio::null())
            .status()
            .await
            .context("cannot run `kill`")?;
        ensure!(status.success(), "cannot send SIG{signal} to {}", self.name);
        Ok(())
    }
}

fn describe(status: std::io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
