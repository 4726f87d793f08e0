//! `outbox gates`

use serde_json::json;

use crate::outbox::{Outbox, die, filtered};
use crate::support::{Database, seed};

async fn three_gates() -> Database {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "a"), ("order-2", "a"), ("order-2", "b"), ("order-2", "c"), ("order-3", "a")]).await;
    die(&store, &format!("first line\nsecond \u{1b}[31mline {}", "x".repeat(100))).await;
    seed(&store, &[("order-4", "a")]).await;
    database
}

#[tokio::test]
async fn gates_are_listed_with_what_waits_behind_each() {
    let database = three_gates().await;
    filtered(|| {
        insta::assert_snapshot!(Outbox::on(&database).run(&["gates"]), @r"
    id  aggregate  type   event  attempts  age  waiting  error
    1   order-1    order  a      1         AGE   0        first line second \u{1b}[31mline xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
    2   order-2    order  a      1         AGE   2        first line second \u{1b}[31mline xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
    5   order-3    order  a      1         AGE   0        first line second \u{1b}[31mline xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…

    answer one with `outbox retry ID` or `outbox skip ID --reason TEXT`
    exit 0
    ");
    });
}

#[tokio::test]
async fn gates_are_listed_page_by_page() {
    let database = three_gates().await;
    let page = |args: &[&str]| Outbox::on(&database).run(args).to_string();
    filtered(|| {
        insta::assert_snapshot!(
            [
                page(&["gates", "--limit", "2"]),
                page(&["gates", "--limit", "2", "--after", "2"]),
                page(&["gates", "--after", "5"]),
            ]
            .join("\n"),
            @r"
            id  aggregate  type   event  attempts  age  waiting  error
            1   order-1    order  a      1         AGE   0        first line second \u{1b}[31mline xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…
            2   order-2    order  a      1         AGE   2        first line second \u{1b}[31mline xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…

            more: outbox gates --after 2 --limit 2
            exit 0
            id  aggregate  type   event  attempts  age  waiting  error
            5   order-3    order  a      1         AGE   0        first line second \u{1b}[31mline xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…

            answer one with `outbox retry ID` or `outbox skip ID --reason TEXT`
            exit 0
            no gates after message 5
            exit 0
            "
        );
    });
}

#[tokio::test]
async fn a_page_is_one_json_document_that_tells_where_the_next_begins() {
    let database = three_gates().await;
    let ran = Outbox::on(&database).run(&["gates", "--json", "--limit", "1"]);
    filtered(|| {
        insta::assert_snapshot!(ran, @r#"
    {"gates":[{"id":1,"aggregate_type":"order","aggregate_id":"order-1","event_type":"a","attempts":1,"last_error":"first line\nsecond \u001b[31mline xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx","created_at":"TIME","age_seconds":SECONDS,"waiting":0}],"next_after":1}
    exit 0
    "#);
    });
    let last = Outbox::on(&database).run(&["gates", "--json", "--after", "2"]).json();
    assert_eq!((&last["gates"][0]["id"], &last["next_after"]), (&json!(5), &json!(null)));
}

#[test]
fn a_page_of_no_gates_or_too_many_is_bad_usage() {
    let refused = |args: &[&str]| Outbox::new().run(args).to_string();
    insta::assert_snapshot!(
        [
            refused(&["gates", "--limit", "0"]),
            refused(&["gates", "--limit", "10001"]),
            refused(&["gates", "--after=-1"]),
            refused(&["gates", "--after", "x"]),
        ]
        .join("\n"),
        @r"
        stderr: outbox: invalid value '0' for '--limit <GATES>': 0 is not in 1..=10000
        exit 2
        stderr: outbox: invalid value '10001' for '--limit <GATES>': 10001 is not in 1..=10000
        exit 2
        stderr: outbox: invalid value '-1' for '--after <ID>': -1 is not in 0..9223372036854775807
        exit 2
        stderr: outbox: invalid value 'x' for '--after <ID>': invalid digit found in string
        exit 2
        "
    );
}
