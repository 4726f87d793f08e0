//! `outbox purge`

use crate::outbox::{Outbox, publish_heads};
use crate::support::{Database, execute, rows, seed};

/// Five rows done ten days ago, one done just now, one pending.
async fn seven_rows() -> Database {
    let database = Database::new().await;
    let store = database.store().await;
    let aggregates = ["order-1", "order-2", "order-3", "order-4", "order-5"];
    seed(&store, &aggregates.map(|aggregate| (aggregate, "old"))).await;
    publish_heads(&store).await;
    execute(&store, "UPDATE outbox SET done_at = done_at - interval '10 days'").await;
    seed(&store, &[("order-6", "new")]).await;
    publish_heads(&store).await;
    seed(&store, &[("order-7", "pending")]).await;
    database
}

#[tokio::test]
async fn old_done_messages_are_deleted_in_batches_and_no_other() {
    let database = seven_rows().await;
    let purge = |args: &[&str]| Outbox::on(&database).run(args).to_string();
    insta::assert_snapshot!(
        [
            purge(&["purge", "--older-than", "11d"]),
            purge(&["purge", "--older-than", "7d", "--batch-size", "2"]),
            purge(&["purge", "--older-than", "7d", "--json"]),
        ]
        .join("\n"),
        @r#"
        purged 0 messages
        exit 0
        purged 5 messages
        exit 0
        {"purged":0}
        exit 0
        "#
    );
    let left = rows(&database.store().await).await;
    assert_eq!(left, [(6, "done".to_owned(), 1), (7, "pending".to_owned(), 0)]);
}

#[tokio::test]
async fn an_age_of_zero_deletes_every_done_message() {
    let database = seven_rows().await;
    let ran = Outbox::on(&database).run(&["purge", "--older-than", "0s", "--json"]);
    assert_eq!(ran.json()["purged"], 6, "{ran}");
}

#[test]
fn an_age_or_a_batch_that_makes_no_sense_is_bad_usage() {
    let refused = |args: &[&str]| Outbox::new().run(args).to_string();
    insta::assert_snapshot!(
        [
            refused(&["purge"]),
            refused(&["purge", "--older-than", "7"]),
            refused(&["purge", "--older-than", "-7d"]),
            refused(&["purge", "--older-than", "1000y"]),
            refused(&["purge", "--older-than", "7d", "--batch-size", "0"]),
        ]
        .join("\n"),
        @r"
        stderr: outbox: the following required arguments were not provided: --older-than <DURATION>; see `outbox purge --help`
        exit 2
        stderr: outbox: invalid value '7' for '--older-than <DURATION>': write a number and a unit, for example 500ms, 60s, 15m, 12h or 7d
        exit 2
        stderr: outbox: invalid value '-7d' for '--older-than <DURATION>': write a number and a unit, for example 500ms, 60s, 15m, 12h or 7d
        exit 2
        stderr: outbox: invalid value '1000y' for '--older-than <DURATION>': choose 100 years or less
        exit 2
        stderr: outbox: invalid value '0' for '--batch-size <MESSAGES>': 0 is not in 1..=100000
        exit 2
        "
    );
}
