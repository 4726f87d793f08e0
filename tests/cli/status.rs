//! `outbox status`

use std::time::Duration;

use ordered_outbox::outcome::Verdict;
use ordered_outbox::store::Finalize;

use crate::outbox::{Outbox, die, filtered};
use crate::support::{Database, expire_leases, request, seed};

/// A gate with two rows behind it, a deferred head with one (C05), an expired lease, and a row that is free to go.
async fn mixed() -> Database {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "a"), ("order-1", "b"), ("order-1", "c")]).await;
    die(&store, "illegal character").await;
    seed(&store, &[("order-2", "a"), ("order-2", "b")]).await;
    let claimed = store.claim(&request("w1", 1)).await.unwrap().messages;
    let later = Verdict::Defer { delay: Duration::from_hours(1), error: "deferred: no account yet".into() };
    store.finalize(&[Finalize::new(&claimed[0], later)]).await.unwrap();
    seed(&store, &[("order-3", "a")]).await;
    store.claim(&request("w1", 1)).await.unwrap();
    expire_leases(&store).await;
    seed(&store, &[("order-4", "a")]).await;
    database
}

#[tokio::test]
async fn the_status_says_how_much_waits_and_why() {
    let database = mixed().await;
    filtered(|| {
        insta::assert_snapshot!(Outbox::on(&database).run(&["status"]), @r"
    status      messages
    pending     5
    processing  1
    done        0
    dead        1

    oldest undelivered                     AGE
    not yet due (backoff, deferral)        1
    waiting behind a head not yet due      1
    gated aggregates (see `outbox gates`)  1
    waiting behind gates                   2
    expired leases                         1

    attempts spent  undelivered messages
    0               5
    1               1
    exit 0
    ");
    });
}

#[tokio::test]
async fn the_status_is_one_json_document_on_request() {
    let database = mixed().await;
    let ran = Outbox::on(&database).run(&["--json", "status"]);
    filtered(|| {
        insta::assert_snapshot!(ran, @r#"
    {"depth":[{"status":"pending","count":5},{"status":"processing","count":1},{"status":"done","count":0},{"status":"dead","count":1}],"oldest_undelivered_seconds":SECONDS,"expired_leases":1,"not_yet_due":1,"gated_aggregates":1,"waiting_behind_gates":2,"waiting_behind_not_yet_due":1,"attempts":[{"attempts":0,"count":5},{"attempts":1,"count":1}]}
    exit 0
    "#);
    });
}

#[tokio::test]
async fn an_empty_outbox_has_a_status_too() {
    let database = Database::new().await;
    insta::assert_snapshot!(Outbox::on(&database).run(&["status"]), @r"
    status      messages
    pending     0
    processing  0
    done        0
    dead        0

    oldest undelivered                     none
    not yet due (backoff, deferral)        0
    waiting behind a head not yet due      0
    gated aggregates (see `outbox gates`)  0
    waiting behind gates                   0
    expired leases                         0
    exit 0
    ");
}
