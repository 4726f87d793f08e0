//! `outbox enqueue`, one message by options.

use crate::outbox::{Outbox, TempFile};
use crate::support::{Database, rows};

/// The options of a good message, with `changes` behind them.
fn message<'a>(changes: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["enqueue", "--aggregate-type", "order", "--event-type", "OrderPlaced"];
    args.extend_from_slice(changes);
    args
}

#[tokio::test]
async fn one_message_is_written_with_its_headers() {
    let database = Database::new().await;
    let outbox = |args: &[&str]| Outbox::on(&database).run(&message(args)).to_string();
    let headers = ["--header", "trace=00-abc", "--header", "eq=a=b"];
    let first = [&["--aggregate-id", "order-1", "--payload", r#"{"n": 9007199254740993}"#], &headers[..]].concat();
    insta::assert_snapshot!(
        [outbox(&first), outbox(&["--aggregate-id", "order-1", "--payload", "-1", "--json"])].join("\n"),
        @r#"
        enqueued message 1 of order-1
        exit 0
        {"enqueued":1,"first_id":2,"last_id":2}
        exit 0
        "#
    );
    let row = database.store().await.show(1).await.unwrap().unwrap();
    assert_eq!(row.payload, r#"{"n": 9007199254740993}"#);
    assert_eq!(row.headers, r#"{"eq": "a=b", "trace": "00-abc"}"#);
}

#[tokio::test]
async fn a_payload_can_come_from_a_file() {
    let database = Database::new().await;
    let file = TempFile::new("{\"from\": \"file\"}\n");
    let ran = Outbox::on(&database).run(&message(&["--aggregate-id", "order-1", "--payload-file", file.path()]));
    assert_eq!(ran.code, 0, "{ran}");
    assert_eq!(database.store().await.show(1).await.unwrap().unwrap().payload, r#"{"from": "file"}"#);
}

// C18, C34
#[tokio::test]
async fn a_message_that_is_not_fit_is_refused_and_nothing_is_written() {
    let database = Database::new().await;
    let outbox = |args: &[&str]| Outbox::on(&database).run(&message(args)).to_string();
    let payload = |payload| outbox(&["--aggregate-id", "order-1", "--payload", payload]);
    let aggregate = |id| outbox(&["--aggregate-id", id, "--payload", "1"]);
    insta::assert_snapshot!(
        [
            payload(""),
            payload("{\"a\":}"),
            payload("{} {}"),
            payload(r#""\u0000""#),
            payload(r#""\ud800""#),
            aggregate(""),
            aggregate("order 1"),
            aggregate(&"x".repeat(129)),
            outbox(&["--aggregate-id", "order-1", "--payload-file", "/nowhere/payload"]),
        ]
        .join("\n"),
        @r"
        stderr: outbox: payload is not JSON (EOF while parsing a value at line 1 column 0): give one JSON value
        exit 1
        stderr: outbox: payload is not JSON (expected value at line 1 column 6): give one JSON value
        exit 1
        stderr: outbox: payload is not JSON (trailing characters at line 1 column 4): give one JSON value
        exit 1
        stderr: outbox: payload holds \u0000, which PostgreSQL cannot store: leave it out
        exit 1
        stderr: outbox: the message was not written: insert into outbox: invalid input syntax for type json
        exit 1
        stderr: outbox: aggregate_id is empty: give it a name
        exit 1
        stderr: outbox: aggregate_id holds ' ': SQS takes ASCII letters, digits and punctuation, and no space
        exit 1
        stderr: outbox: aggregate_id has 129 characters: SQS takes a message group id of 1 to 128
        exit 1
        stderr: outbox: cannot read the payload from /nowhere/payload: No such file or directory (os error 2)
        exit 1
        "
    );
    assert_eq!(rows(&database.store().await).await, []);
}

#[tokio::test]
async fn a_payload_file_that_is_no_text_or_far_too_long_is_refused() {
    let database = Database::new().await;
    for (contents, told) in [(vec![b'"', 0xff, b'"'], "is not UTF-8"), (vec![b' '; 50_000_000], "is longer than 8 MiB")]
    {
        let file = TempFile::new(contents);
        let ran = Outbox::on(&database).run(&message(&["--aggregate-id", "order-1", "--payload-file", file.path()]));
        assert_eq!((ran.code, ran.stderr.lines().count()), (1, 1), "{ran}");
        assert!(ran.stderr.contains(told), "{ran}");
    }
    assert_eq!(rows(&database.store().await).await, []);
}

#[test]
fn a_message_half_given_or_given_twice_is_bad_usage() {
    let refused = |args: &[&str]| Outbox::new().run(args).to_string();
    insta::assert_snapshot!(
        [
            refused(&["enqueue"]),
            refused(&message(&["--aggregate-id", "order-1"])),
            refused(&message(&["--aggregate-id", "order-1", "--payload", "1", "--payload-file", "x"])),
            refused(&message(&["--aggregate-id", "order-1", "--payload", "1", "--header", "x"])),
            refused(&message(&["--stdin"])),
            refused(&["enqueue", "x"]),
        ]
        .join("\n"),
        @r"
        stderr: outbox: the following required arguments were not provided: --aggregate-type <NAME> --aggregate-id <ID> --event-type <NAME> --payload <JSON>; see `outbox enqueue --help`
        exit 2
        stderr: outbox: the following required arguments were not provided: --payload <JSON>; see `outbox enqueue --help`
        exit 2
        stderr: outbox: the argument '--payload <JSON>' cannot be used with '--payload-file <PATH>'; see `outbox enqueue --help`
        exit 2
        stderr: outbox: invalid value 'x' for '--header <NAME=VALUE>': write it as NAME=VALUE
        exit 2
        stderr: outbox: the argument '--aggregate-type <NAME>' cannot be used with '--stdin'; see `outbox enqueue --help`
        exit 2
        stderr: outbox: invalid value 'x' for '[-]' [possible values: -]
        exit 2
        "
    );
}
