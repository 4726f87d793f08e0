//! `outbox run` and its queues: refused before anything is claimed, or drained.

use serde_json::json;

use crate::outbox::Outbox;
use crate::support::queue::{Queue, Received};
use crate::support::{Database, rows, seed};

/// Two messages of one aggregate and one of another.
async fn seeded() -> Database {
    let database = Database::new().await;
    seed(&database.store().await, &[("order-1", "a"), ("order-1", "b"), ("order-2", "a")]).await;
    database
}

// C19
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_keeps_no_order_or_is_not_there_is_refused_and_no_row_is_touched() {
    let (database, standard, missing) = (seeded().await, Queue::standard().await, Queue::fifo().await);
    missing.delete().await;
    let before = rows(&database.store().await).await;
    let run = |url: &str| {
        let ran = Outbox::on(&database).with_aws().run(&["run", "--drain", "--queue-url", url]);
        ran.to_string().replace(url, "URL")
    };
    insta::assert_snapshot!([run(standard.url()), run(missing.url())].join("\n"), @r"
    stderr: outbox: URL is a standard queue, which keeps no order: create a FIFO queue, whose name ends in .fifo
    exit 1
    stderr: outbox: there is no queue URL (AWS.SimpleQueueService.NonExistentQueue): create it, or correct account, region and name in the URL
    exit 1
    ");
    assert_eq!(rows(&database.store().await).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_missing_queue_among_the_routes_is_enough_to_refuse() {
    let (database, orders, payments) = (seeded().await, Queue::fifo().await, Queue::fifo().await);
    payments.delete().await;
    let routes = format!("order={},payment={}", orders.url(), payments.url());
    let ran = Outbox::on(&database).with_aws().env("OUTBOX_ROUTES", &routes).run(&["run", "--drain", "--json"]);
    assert_eq!(ran.code, 1, "{ran}");
    assert!(ran.json_error().contains(payments.url()), "{ran}");
    assert_eq!(orders.receive_all().await, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_sends_what_is_due_and_sums_up_as_json() {
    let (database, queue) = (seeded().await, Queue::fifo().await);
    let ran = Outbox::on(&database).with_aws().run(&["run", "--drain", "--json", "--queue-url", queue.url()]);
    assert_eq!(ran.code, 0, "{ran}");
    let summary = ran.json();
    assert_eq!((&summary["published"], &summary["dead"]), (&json!(3), &json!(0)), "{ran}");
    for line in ran.stderr.lines() {
        let log: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(log["message"].is_string(), "{line}");
    }
    let mut sent: Vec<_> = queue.receive_all().await.iter().map(Received::outbox_id).collect();
    sent.sort_unstable();
    assert_eq!(sent, [1, 2, 3]);
}
