//! `outbox retry` and `outbox skip`: a person's answers to a gate.

use crate::outbox::{Outbox, die, publish_heads};
use crate::support::{Database, ids, request, rows, seed};

#[tokio::test]
async fn a_retried_message_goes_again_with_its_attempts_afresh() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "a"), ("order-1", "b"), ("order-2", "a")]).await;
    die(&store, "boom").await;
    let retry = |args: &[&str]| Outbox::on(&database).run(args).to_string();
    insta::assert_snapshot!([retry(&["retry", "1"]), retry(&["retry", "3", "--json"])].join("\n"), @r#"
    message 1 is sent again, its attempts afresh
    exit 0
    {"id":3,"status":"pending"}
    exit 0
    "#);
    let pending = |id| (id, "pending".to_owned(), 0);
    assert_eq!(rows(&store).await, [pending(1), pending(2), pending(3)]);
    assert_eq!(ids(&store.claim(&request("w2", 10)).await.unwrap().messages), [1, 3]);
}

// C09
#[tokio::test]
async fn a_skipped_message_is_done_with_its_reason_and_the_next_goes_at_once() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "a"), ("order-1", "b"), ("order-2", "a")]).await;
    die(&store, "boom").await;
    let skip = |args: &[&str]| Outbox::on(&database).run(args).to_string();
    let reason = "customer was told by phone";
    insta::assert_snapshot!(
        [skip(&["skip", "1", "--reason", reason]), skip(&["skip", "3", "--reason", reason, "--json"])].join("\n"),
        @r#"
        message 1 is skipped, its aggregate goes on
        exit 0
        {"id":3,"skip_reason":"customer was told by phone","status":"done"}
        exit 0
        "#
    );
    let row = store.show(1).await.unwrap().unwrap();
    assert_eq!((row.status.as_str(), row.skip_reason.as_deref()), ("done", Some(reason)));
    assert_eq!(ids(&store.claim(&request("w2", 10)).await.unwrap().messages), [2]);
}

// C24
#[tokio::test]
async fn only_a_dead_message_can_be_answered() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "done")]).await;
    publish_heads(&store).await;
    seed(&store, &[("order-2", "leased")]).await;
    store.claim(&request("w1", 1)).await.unwrap();
    seed(&store, &[("order-3", "pending")]).await;
    let before = rows(&store).await;

    let answer = |args: &[&str]| Outbox::on(&database).run(args).to_string();
    let mut told = Vec::new();
    for id in ["1", "2", "3", "4"] {
        told.push(answer(&["retry", id]));
        told.push(answer(&["skip", id, "--reason", "x"]));
    }
    insta::assert_snapshot!(told.join("\n"), @r"
    stderr: outbox: message 1 is done, not dead: only a dead message can be retried or skipped
    exit 1
    stderr: outbox: message 1 is done, not dead: only a dead message can be retried or skipped
    exit 1
    stderr: outbox: message 2 is processing, not dead: only a dead message can be retried or skipped
    exit 1
    stderr: outbox: message 2 is processing, not dead: only a dead message can be retried or skipped
    exit 1
    stderr: outbox: message 3 is pending, not dead: only a dead message can be retried or skipped
    exit 1
    stderr: outbox: message 3 is pending, not dead: only a dead message can be retried or skipped
    exit 1
    stderr: outbox: there is no message 4: it never existed, or it was purged
    exit 1
    stderr: outbox: there is no message 4: it never existed, or it was purged
    exit 1
    ");
    assert_eq!(rows(&store).await, before);
}

#[tokio::test]
async fn a_skip_needs_a_reason() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "a")]).await;
    die(&store, "boom").await;
    let before = rows(&store).await;
    let skip = |args: &[&str]| Outbox::on(&database).run(args).to_string();
    insta::assert_snapshot!(
        [skip(&["skip", "1"]), skip(&["skip", "1", "--reason", ""]), skip(&["skip", "1", "--reason", " \t"])].join("\n"),
        @r"
        stderr: outbox: the following required arguments were not provided: --reason <TEXT>; see `outbox skip --help`
        exit 2
        stderr: outbox: invalid value '' for '--reason <TEXT>': it is empty: write at least one word
        exit 2
        stderr: outbox: invalid value ' ' for '--reason <TEXT>': it is empty: write at least one word
        exit 2
        "
    );
    assert_eq!(rows(&store).await, before);
}
