//! `outbox run`: what it refuses before it claims anything.

use crate::outbox::Outbox;

const QUEUE: &str = "--queue-url=http://sqs/1/orders.fifo";

/// Refused by the command line alone: there is no database in sight.
fn refused(args: &[&str]) -> String {
    let args = [&["run"], args].concat();
    Outbox::new().run(&args).to_string()
}

#[test]
fn settings_that_would_break_a_promise_are_bad_usage() {
    insta::assert_snapshot!(
        [
            refused(&[QUEUE, "--publish-timeout=60s", "--lease=60s"]),
            refused(&[QUEUE, "--publish-timeout=2m", "--lease=60s"]),
            refused(&[QUEUE, "--lease=4m"]),
            refused(&[QUEUE, "--batch-size=0"]),
            refused(&[QUEUE, "--batch-size=10001"]),
            refused(&[QUEUE, "--run-length=0"]),
            refused(&[QUEUE, "--concurrency=0"]),
            refused(&[QUEUE, "--max-attempts=0"]),
            refused(&[QUEUE, "--group-batching=0"]),
            refused(&[QUEUE, "--group-batching=11"]),
        ]
        .join("\n"),
        @r"
        stderr: outbox: publish timeout 1m is not well under the lease 1m: choose at most half of it, for example 10s and 60s
        exit 2
        stderr: outbox: publish timeout 2m is not well under the lease 1m: choose at most half of it, for example 10s and 60s
        exit 2
        stderr: outbox: lease 4m is not far below the 5 minutes for which SQS drops copies: choose 150s or less
        exit 2
        stderr: outbox: batch size 0 is not usable: choose 1 to 10000 rows
        exit 2
        stderr: outbox: batch size 10001 is not usable: choose 1 to 10000 rows
        exit 2
        stderr: outbox: run length is 0: choose 1 or more
        exit 2
        stderr: outbox: concurrency is 0: choose 1 or more
        exit 2
        stderr: outbox: max attempts is 0: choose 1 or more
        exit 2
        stderr: outbox: group batching 0 is not usable: choose 1 to keep strict order, or up to 10 messages of an aggregate in one request
        exit 2
        stderr: outbox: group batching 11 is not usable: choose 1 to keep strict order, or up to 10 messages of an aggregate in one request
        exit 2
        "
    );
}

#[test]
fn values_that_make_no_sense_are_bad_usage() {
    insta::assert_snapshot!(
        [
            refused(&[QUEUE, "--lease=0s"]),
            refused(&[QUEUE, "--lease", "-5s"]),
            refused(&[QUEUE, "--lease=60"]),
            refused(&[QUEUE, "--publish-timeout=0s"]),
            refused(&[QUEUE, "--poll-interval=0ms"]),
            refused(&[QUEUE, "--backoff-base=0s"]),
            refused(&[QUEUE, "--backoff-cap=584554530000y"]),
            refused(&[QUEUE, "--batch-size=-1"]),
            refused(&[QUEUE, "--batch-size=many"]),
            refused(&[QUEUE, "--owner="]),
            refused(&[QUEUE, "--source= "]),
            refused(&[QUEUE, "--database-connections=2"]),
            refused(&[QUEUE, "--log=ordered_outbox=loud"]),
        ]
        .join("\n"),
        @r#"
        stderr: outbox: invalid value '0s' for '--lease <DURATION>': choose more than zero
        exit 2
        stderr: outbox: invalid value '-5s' for '--lease <DURATION>': write a number and a unit, for example 500ms, 60s, 15m, 12h or 7d
        exit 2
        stderr: outbox: invalid value '60' for '--lease <DURATION>': write a number and a unit, for example 500ms, 60s, 15m, 12h or 7d
        exit 2
        stderr: outbox: invalid value '0s' for '--publish-timeout <DURATION>': choose more than zero
        exit 2
        stderr: outbox: invalid value '0ms' for '--poll-interval <DURATION>': choose more than zero
        exit 2
        stderr: outbox: invalid value '0s' for '--backoff-base <DURATION>': choose more than zero
        exit 2
        stderr: outbox: invalid value '584554530000y' for '--backoff-cap <DURATION>': write a number and a unit, for example 500ms, 60s, 15m, 12h or 7d
        exit 2
        stderr: outbox: invalid value '-1' for '--batch-size <MESSAGES>': -1 is not in 0..=4294967295
        exit 2
        stderr: outbox: invalid value 'many' for '--batch-size <MESSAGES>': invalid digit found in string
        exit 2
        stderr: outbox: invalid value '' for '--owner <NAME>': it is empty: write at least one word
        exit 2
        stderr: outbox: invalid value ' ' for '--source <NAME>': it is empty: write at least one word
        exit 2
        stderr: outbox: invalid value '2' for '--database-connections <CONNECTIONS>': 2 is not in 3..=1000
        exit 2
        stderr: outbox: log filter `ordered_outbox=loud` cannot be read (error parsing level filter: expected one of "off", "error", "warn", "info", "debug", "trace", or a number 0-5): write it as `info` or `warn,ordered_outbox=debug`
        exit 2
        "#
    );
}

#[test]
fn exactly_one_way_of_routing_is_required() {
    insta::assert_snapshot!(
        [
            refused(&[]),
            refused(&["--queue-url=orders.fifo"]),
            refused(&["--route=order"]),
            refused(&["--route==http://sqs/1/orders.fifo"]),
            refused(&["--route=order="]),
            refused(&["--route=order=orders.fifo"]),
            refused(&["--route=order=http://sqs/1/a.fifo", "--route=order=http://sqs/1/b.fifo"]),
            refused(&[QUEUE, "--route=order=http://sqs/1/orders.fifo"]),
        ]
        .join("\n"),
        @r"
        stderr: outbox: no queue is given: name one for all messages by --queue-url, or one an aggregate type by --route
        exit 2
        stderr: outbox: invalid value 'orders.fifo' for '--queue-url <URL>': give the queue's URL, as `aws sqs get-queue-url` prints it
        exit 2
        stderr: outbox: invalid value 'order' for '--route <AGGREGATE_TYPE=URL>': write it as AGGREGATE_TYPE=URL, for example order=https://sqs.eu-west-1.amazonaws.com/123/orders.fifo
        exit 2
        stderr: outbox: invalid value '=http://sqs/1/orders.fifo' for '--route <AGGREGATE_TYPE=URL>': write it as AGGREGATE_TYPE=URL, for example order=https://sqs.eu-west-1.amazonaws.com/123/orders.fifo
        exit 2
        stderr: outbox: invalid value 'order=' for '--route <AGGREGATE_TYPE=URL>': write it as AGGREGATE_TYPE=URL, for example order=https://sqs.eu-west-1.amazonaws.com/123/orders.fifo
        exit 2
        stderr: outbox: invalid value 'order=orders.fifo' for '--route <AGGREGATE_TYPE=URL>': give the queue's URL, as `aws sqs get-queue-url` prints it
        exit 2
        stderr: outbox: aggregate type `order` has two routes, one to http://sqs/1/a.fifo: keep one of them
        exit 2
        stderr: outbox: --queue-url and --route are both given (OUTBOX_QUEUE_URL and OUTBOX_ROUTES count too): keep one of them
        exit 2
        "
    );
}

#[test]
fn the_environment_is_refused_as_the_command_line_is() {
    let refused = |name, value| {
        let outbox = Outbox::new().env("OUTBOX_QUEUE_URL", "http://sqs/1/orders.fifo");
        outbox.env(name, value).run(&["run"]).to_string()
    };
    insta::assert_snapshot!(
        [
            refused("OUTBOX_LEASE", "10m"),
            refused("OUTBOX_PUBLISH_TIMEOUT", "soon"),
            refused("OUTBOX_BATCH_SIZE", "0"),
            refused("OUTBOX_GROUP_BATCHING", "11"),
            refused("OUTBOX_ROUTES", "order=http://sqs/1/a.fifo,payment=http://sqs/1/b.fifo"),
            refused("OUTBOX_ROUTES", ""),
            refused("OUTBOX_QUEUE_URL", ""),
        ]
        .join("\n"),
        @r"
        stderr: outbox: lease 10m is not far below the 5 minutes for which SQS drops copies: choose 150s or less
        exit 2
        stderr: outbox: invalid value 'soon' for '--publish-timeout <DURATION>': write a number and a unit, for example 500ms, 60s, 15m, 12h or 7d
        exit 2
        stderr: outbox: batch size 0 is not usable: choose 1 to 10000 rows
        exit 2
        stderr: outbox: group batching 11 is not usable: choose 1 to keep strict order, or up to 10 messages of an aggregate in one request
        exit 2
        stderr: outbox: --queue-url and --route are both given (OUTBOX_QUEUE_URL and OUTBOX_ROUTES count too): keep one of them
        exit 2
        stderr: outbox: DATABASE_URL is not set: set it to postgres://user:password@host:5432/database, or name a file that holds it by --database-url-file
        exit 2
        stderr: outbox: no queue is given: name one for all messages by --queue-url, or one an aggregate type by --route
        exit 2
        "
    );
}

#[test]
fn an_option_goes_before_its_variable() {
    let outbox = Outbox::new().env("OUTBOX_LEASE", "10m").env("OUTBOX_QUEUE_URL", "http://sqs/1/orders.fifo");
    let ran = outbox.run(&["run", "--lease", "60s", "--json"]);
    assert!(ran.json_error().starts_with("DATABASE_URL is not set"), "{ran}");
}
