//! `outbox enqueue --stdin`: JSON lines.

use crate::outbox::Outbox;
use crate::support::{Database, rows};

/// A line of order-1.
fn line(payload: &str) -> String {
    format!(r#"{{"aggregate_type":"order","aggregate_id":"order-1","event_type":"e","payload":{payload}}}"#) + "\n"
}

async fn payloads(database: &Database) -> Vec<String> {
    let store = database.store().await;
    let mut payloads = Vec::new();
    for (id, ..) in rows(&store).await {
        payloads.push(store.show(id).await.unwrap().unwrap().payload);
    }
    payloads
}

// C33
#[tokio::test]
async fn every_line_becomes_a_message_in_order_and_digit_by_digit() {
    let database = Database::new().await;
    let input = [line("9007199254740993"), "\n".to_owned(), line("0.10"), line("[1, \"x\"]")].concat();
    let run = |args: &[&str]| Outbox::on(&database).stdin(input.clone()).run(args).to_string();
    insta::assert_snapshot!(
        [run(&["enqueue", "--stdin"]), run(&["enqueue", "-", "--chunk-size", "2", "--json"])].join("\n"),
        @r#"
        enqueued 3 messages, ids 1 to 3
        exit 0
        {"enqueued":3,"first_id":4,"last_id":6}
        exit 0
        "#
    );
    let once = ["9007199254740993", "0.10", "[1, \"x\"]"];
    assert_eq!(payloads(&database).await, [once, once].concat());
}

#[tokio::test]
async fn headers_of_a_line_are_kept() {
    let database = Database::new().await;
    let input = r#"{"aggregate_type":"a","aggregate_id":"b","event_type":"c","payload":1,"headers":{"trace":"00"}}"#;
    assert_eq!(Outbox::on(&database).stdin(input).run(&["enqueue", "-"]).code, 0);
    assert_eq!(database.store().await.show(1).await.unwrap().unwrap().headers, r#"{"trace": "00"}"#);
}

#[tokio::test]
async fn a_bad_line_stops_with_its_number_and_the_rest_can_be_resumed() {
    let database = Database::new().await;
    let bad = [line("1"), line("2"), line("3"), "{\n".to_owned(), line("5")].concat();
    let mended = [line("1"), line("2"), line("3"), line("4"), line("5")].concat();
    let run = |input: &str, args: &[&str]| Outbox::on(&database).stdin(input).run(args).to_string();
    insta::assert_snapshot!(
        [
            run(&bad, &["enqueue", "-", "--chunk-size", "2"]),
            run(&bad, &["enqueue", "-", "--chunk-size", "2", "--skip-lines", "2"]),
            run(&mended, &["enqueue", "-", "--chunk-size", "2", "--skip-lines", "2"]),
        ]
        .join("\n"),
        @r"
        stderr: outbox: line 4: it is not JSON (EOF while parsing an object at column 1): write one JSON object a line; lines 1 to 2 are written, go on with --skip-lines 2
        exit 1
        stderr: outbox: line 4: it is not JSON (EOF while parsing an object at column 1): write one JSON object a line; nothing was written
        exit 1
        enqueued 3 messages, ids 3 to 5
        exit 0
        "
    );
    assert_eq!(payloads(&database).await, ["1", "2", "3", "4", "5"]);
}

// C18, C34
#[tokio::test]
async fn each_kind_of_bad_line_is_told_in_one_sentence_and_nothing_is_written() {
    let database = Database::new().await;
    let run = |second: &[u8]| {
        let input = [line("1").as_bytes(), second].concat();
        Outbox::on(&database).stdin(input).run(&["enqueue", "--stdin"]).to_string()
    };
    let of = |json: &str| run(json.as_bytes());
    insta::assert_snapshot!(
        [
            of("nonsense"),
            of(&line("")),
            of("[\"order\",\"order-1\",\"e\",1]"),
            of("{}"),
            of(r#"{"aggregate_type":"a","aggregate_id":"b","event_type":"c","payload":1,"header":{}}"#),
            of(r#"{"aggregate_type":"a","aggregate_id":"b","event_type":"c","payload":1,"headers":{"n":1}}"#),
            of(r#"{"aggregate_type":"a","aggregate_id":"","event_type":"c","payload":1}"#),
            of(r#"{"aggregate_type":"a","aggregate_id":"b c","event_type":"c","payload":1}"#),
            of(&line(r#""\u0000""#)),
            of(&line(r#""\ud800""#)),
            run(b"\"\xff\xfe\"\n"),
        ]
        .join("\n"),
        @r"
        stderr: outbox: line 2: it is not JSON (expected ident at column 2): write one JSON object a line; nothing was written
        exit 1
        stderr: outbox: line 2: it is not JSON (expected value at column 79): write one JSON object a line; nothing was written
        exit 1
        stderr: outbox: line 2: it is a JSON array: write one JSON object a line; nothing was written
        exit 1
        stderr: outbox: line 2: missing field `aggregate_type` at column 2; nothing was written
        exit 1
        stderr: outbox: line 2: unknown field `header`, expected one of `aggregate_type`, `aggregate_id`, `event_type`, `payload`, `headers` at column 78; nothing was written
        exit 1
        stderr: outbox: line 2: invalid type: integer `1`, expected a string at column 86; nothing was written
        exit 1
        stderr: outbox: line 2: aggregate_id is empty: give it a name; nothing was written
        exit 1
        stderr: outbox: line 2: aggregate_id holds ' ': SQS takes ASCII letters, digits and punctuation, and no space; nothing was written
        exit 1
        stderr: outbox: line 2: payload holds \u0000, which PostgreSQL cannot store: leave it out; nothing was written
        exit 1
        stderr: outbox: line 2: insert into outbox: invalid input syntax for type json; nothing was written
        exit 1
        stderr: outbox: line 2: it is not UTF-8 from byte 2 on: convert the input; nothing was written
        exit 1
        "
    );
    assert_eq!(rows(&database.store().await).await, []);
}

#[tokio::test]
async fn a_line_of_fifty_megabytes_is_refused_and_can_be_passed_over() {
    let database = Database::new().await;
    let huge = format!("\"{}\"", "x".repeat(50_000_000));
    let input = [line("1"), line(&huge), line("3")].concat();
    let run = |args: &[&str]| Outbox::on(&database).stdin(input.clone()).run(args).to_string();
    insta::assert_snapshot!(
        [run(&["enqueue", "-", "--chunk-size", "1"]), run(&["enqueue", "-", "--skip-lines", "2"])].join("\n"),
        @r"
        stderr: outbox: line 2: it is longer than 8 MiB: SQS takes 1 MiB; line 1 is written, go on with --skip-lines 1
        exit 1
        enqueued 1 message, ids 2 to 2
        exit 0
        "
    );
    assert_eq!(payloads(&database).await, ["1", "3"]);
}

#[tokio::test]
async fn standard_input_without_a_message_is_refused() {
    let database = Database::new().await;
    let run = |input: &str, args: &[&str]| Outbox::on(&database).stdin(input).run(args).to_string();
    insta::assert_snapshot!(
        [
            run("", &["enqueue", "-"]),
            run("\n \n", &["enqueue", "--stdin"]),
            run(&line("1"), &["enqueue", "-", "--skip-lines", "9"]),
        ]
        .join("\n"),
        @r"
        stderr: outbox: standard input holds no message: write one JSON object a line
        exit 1
        stderr: outbox: standard input holds no message: write one JSON object a line
        exit 1
        stderr: outbox: standard input holds no message after line 9: use a smaller --skip-lines
        exit 1
        "
    );
    assert_eq!(rows(&database.store().await).await, []);
}
