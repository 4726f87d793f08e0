//! The database fails while the queue does not.

use std::time::Duration;

use ordered_outbox::{DispatcherConfig, Store};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::log::Log;
use crate::support::{eventually, execute, rows};
use crate::{Outbox, quick};

/// By a connection that nothing here is done to.
async fn by_hand(outbox: &Outbox, sql: String) {
    let mut connection = PgConnection::connect(outbox.database.url()).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

// C30
#[tokio::test]
async fn connections_that_only_read_are_replaced_so_that_a_failover_costs_no_attempt_and_needs_no_restart() {
    let outbox = Outbox::new().await;
    outbox.seed(50, 2).await;
    let (log, _logging) = Log::start();
    let name = outbox.database.url().rsplit('/').next().unwrap();
    // every connection made from now on only reads, for as long as it lives, as to a primary that became a standby
    by_hand(&outbox, format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    let store = Store::connect(outbox.database.url(), 3).await.unwrap();
    let running = outbox.start_on(store, quick()).await;
    eventually("it was refused, on every connection", || async { log.text().matches("claim failed").count() >= 4 })
        .await;
    assert!(outbox.sqs.arrivals().is_empty());
    let writable = format!("BEGIN READ WRITE; ALTER DATABASE {name} RESET default_transaction_read_only; COMMIT");
    by_hand(&outbox, writable).await;
    eventually("all done", || outbox.all_done()).await;
    let summary = running.finish().await;
    assert_eq!((summary.published, summary.dead, summary.backoff), (100, 0, 0), "{summary:?}");
    outbox.assert_untouched_by_it().await;
}

// C30
#[tokio::test]
async fn a_database_that_cuts_every_connection_under_traffic_costs_no_attempt() {
    let outbox = Outbox::new().await;
    outbox.seed(200, 3).await;
    let running = outbox.start(quick()).await;
    eventually("some are sent", || async { !outbox.sqs.accepted().is_empty() }).await;
    for _ in 0..5 {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE datname = current_database() AND pid <> pg_backend_pid()";
        by_hand(&outbox, cut.to_owned()).await;
        let sent = outbox.sqs.accepted().len();
        eventually("more is sent", || async { outbox.sqs.accepted().len() >= (sent + 20).min(600) }).await;
    }
    eventually("all done", || outbox.all_done_afresh()).await;
    let summary = running.finish().await;
    assert_eq!((summary.dead, summary.backoff, summary.lease_lost), (0, 0, 0), "{summary:?}");
    outbox.assert_untouched_by_it().await;
}

// C39
#[tokio::test]
async fn where_a_finalize_fails_after_sqs_accepted_the_next_of_the_aggregate_waits_for_it() {
    let outbox = Outbox::new().await;
    outbox.seed(1, 2).await;
    execute(
        &outbox.store,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'disk full' USING ERRCODE = 'disk_full'; END $$",
    )
    .await;
    execute(
        &outbox.store,
        "CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.status = 'done') EXECUTE FUNCTION refuse()",
    )
    .await;
    let running = outbox.start(DispatcherConfig { run_length: 1, ..quick() }).await;
    eventually("SQS took the first", || async { !outbox.sqs.accepted().is_empty() }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(outbox.sqs.accepted().iter().all(|accepted| accepted.outbox_id == 1), "the second overtook the write");
    assert_eq!(rows(&outbox.store).await[0].1, "processing");
    execute(&outbox.store, "DROP TRIGGER refuse ON outbox").await;
    eventually("all done", || outbox.all_done()).await;
    running.finish().await;
    outbox.assert_untouched_by_it().await;
}
