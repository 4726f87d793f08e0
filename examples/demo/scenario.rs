//! The course of events, from an empty database to the last check.

use std::future::Future;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::count::Count;
use crate::dispatchers::Fleet;
use crate::outbox::Outbox;
use crate::producers::Shop;
use crate::queues::Queues;
use crate::report::Report;
use crate::{consumer, gate, producers, verify};

/// One connection a producer, and some to look.
const CONNECTIONS: u32 = 12;

pub(crate) async fn run(run: String, options: PgConnectOptions, outbox: Outbox, board: Arc<Board>) -> Result<Report> {
    outbox.output(&["migrate"]).await?;
    // No ping before each transaction: the server is near, and an error ends the demo anyway.
    let pool =
        PgPoolOptions::new().max_connections(CONNECTIONS).test_before_acquire(false).connect_with(options).await?;
    sqlx::raw_sql(include_str!("schema.sql")).execute(&pool).await.context("cannot create the shop's tables")?;
    let queues = Queues::create().await?;
    let logs = std::env::temp_dir().join(&run);
    std::fs::create_dir(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    board.say(&format!("logs of the dispatchers: {}", logs.display()));

    let mut fleet = Fleet::start(&outbox, &queues, &logs, &board)?;
    let done = CancellationToken::new();
    let mut consumers = consumer::start(&queues, &run, &board, &done);
    let (killed, kill) = oneshot::channel();
    let shop = Shop { pool: pool.clone(), run, board: Arc::clone(&board) };
    let course = async {
        let kill = async { kill.await.context("no dispatcher was killed") };
        let ((), gate, kill) = tokio::try_join!(producers::run(shop), gate::answer(&outbox, &board), kill)?;
        verify::until_all_done(&pool).await?;
        Ok((gate, kill))
    };
    let (gate, kill) = watched(&board, &mut consumers, async {
        tokio::select! {
            // First the fleet: its error is the cause of all others.
            biased;
            Err(error) = fleet.lose_one(&pool, &board, killed) => Err(error),
            ended = course => ended,
        }
    })
    .await?;
    // Every row is done, so nothing is sent any more; what is in the queues is what is still to come.
    let dispatchers = watched(&board, &mut consumers, async {
        let ends = fleet.stop(&board).await?;
        queues.until_empty().await?;
        Ok(ends)
    })
    .await?;
    done.cancel();
    while let Some(ended) = consumers.join_next().await {
        ended.context("a consumer failed")??;
    }

    let rows = verify::rows(&pool).await?;
    pool.close().await;
    let count = Count::new(&rows, &board.tracker());
    let report = Report::new(&board, count, kill, gate, dispatchers);
    if report.problems.is_empty() {
        std::fs::remove_dir_all(&logs).with_context(|| format!("cannot remove {}", logs.display()))?;
    }
    Ok(report)
}

/// A part of the course, with its progress shown and with an end as soon as a consumer fails.
async fn watched<T>(
    board: &Board,
    consumers: &mut JoinSet<Result<()>>,
    part: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        ended = part => ended,
        () = board.show() => Err(anyhow!("the progress display ended")),
        Some(ended) = consumers.join_next() => {
            ended.context("a consumer failed")??;
            Err(anyhow!("a consumer ended early"))
        }
    }
}
