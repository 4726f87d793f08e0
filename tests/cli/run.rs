//! `outbox run`: what it refuses before it claims anything.

use crate::outbox::Outbox;
use crate::support::queue::Queue;
use crate::support::{Database, Postgres};

const QUEUE: &str = "--queue-url=http://sqs/1/orders.fifo";

/// Refused by the command line alone: there is no database in sight.
fn refused(args: &[&str]) -> String {
    let args = [&["run"], args].concat();
    Outbox::new().run(&args).to_string()
}

/// A database and a queue with which nothing is wrong.
struct Sound {
    database: Database,
    queue: Queue,
}

impl Sound {
    async fn new() -> Self {
        Self { database: Database::new().await, queue: Queue::fifo().await }
    }

    /// Refused for these arguments and variables alone.
    fn refused(&self, args: &[&str], variables: &[(&str, &str)]) -> String {
        let outbox = Outbox::on(&self.database).with_aws().env("OUTBOX_QUEUE_URL", self.queue.url());
        let outbox = variables.iter().fold(outbox, |outbox, (name, value)| outbox.env(name, value));
        outbox.run(&[&["run", "--drain"], args].concat()).to_string()
    }
}

#[tokio::test]
async fn settings_that_would_break_a_promise_are_bad_usage() {
    let sound = Sound::new().await;
    let refused = |args: &[&str]| sound.refused(args, &[]);
    insta::assert_snapshot!(
        [
            refused(&["--publish-timeout=60s", "--lease=60s"]),
            refused(&["--publish-timeout=2m", "--lease=60s"]),
            refused(&["--lease=4m"]),
            refused(&["--batch-size=0"]),
            refused(&["--batch-size=10001"]),
            refused(&["--run-length=0"]),
            refused(&["--concurrency=0"]),
            refused(&["--max-attempts=0"]),
            refused(&["--group-batching=0"]),
            refused(&["--group-batching=11"]),
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

#[tokio::test]
async fn exactly_one_way_of_routing_is_required() {
    let sound = Sound::new().await;
    // a variable that is set to nothing is not set
    let without_queue = |args: &[&str]| sound.refused(args, &[("OUTBOX_QUEUE_URL", "")]);
    let with_queue = |args: &[&str]| sound.refused(args, &[]);
    insta::assert_snapshot!(
        [
            without_queue(&[]),
            without_queue(&["--queue-url=orders.fifo"]),
            without_queue(&["--route=order"]),
            without_queue(&["--route==http://sqs/1/orders.fifo"]),
            without_queue(&["--route=order="]),
            without_queue(&["--route=order=orders.fifo"]),
            without_queue(&["--route=order=http://sqs/1/a.fifo", "--route=order=http://sqs/1/b.fifo"]),
            with_queue(&["--route=order=http://sqs/1/orders.fifo"]),
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

#[tokio::test]
async fn the_environment_is_refused_as_the_command_line_is() {
    let sound = Sound::new().await;
    let refused = |name, value| sound.refused(&[], &[(name, value)]);
    insta::assert_snapshot!(
        [
            refused("OUTBOX_LEASE", "10m"),
            refused("OUTBOX_PUBLISH_TIMEOUT", "soon"),
            refused("OUTBOX_BATCH_SIZE", "0"),
            refused("OUTBOX_GROUP_BATCHING", "11"),
            refused("OUTBOX_ROUTES", "order=http://sqs/1/a.fifo,payment=http://sqs/1/b.fifo"),
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
        stderr: outbox: no queue is given: name one for all messages by --queue-url, or one an aggregate type by --route
        exit 2
        "
    );
}

#[tokio::test]
async fn an_option_goes_before_its_variable_and_a_variable_set_to_nothing_is_not_set() {
    let sound = Sound::new().await;
    let ran = sound.refused(&["--lease", "60s"], &[("OUTBOX_LEASE", "10m"), ("OUTBOX_ROUTES", "")]);
    assert!(ran.ends_with("exit 0"), "{ran}");
}

#[tokio::test]
async fn every_problem_is_told_at_once_and_only_bad_usage_of_all_of_them_is_bad_usage() {
    let database = Database::unmigrated(Postgres::Latest).await;
    let missing = Queue::fifo().await;
    missing.delete().await;
    let args = ["run", "--lease=4m", "--batch-size=0", "--queue-url", missing.url()];
    let ran = Outbox::on(&database).with_aws().run(&args).to_string();
    insta::assert_snapshot!(ran.replace(missing.url(), "URL"), @r"
        stderr: outbox: lease 4m is not far below the 5 minutes for which SQS drops copies: choose 150s or less
        stderr: outbox: batch size 0 is not usable: choose 1 to 10000 rows
        stderr: outbox: the database has no outbox: run `outbox migrate` first
        stderr: outbox: there is no queue URL (AWS.SimpleQueueService.NonExistentQueue): create it, or correct account, region and name in the URL
        exit 1
        ");
    let ran = Outbox::new().run(&["run", "--lease=4m", "--json"]).to_string();
    insta::assert_snapshot!(ran, @r#"
        stderr: {"error":"lease 4m is not far below the 5 minutes for which SQS drops copies: choose 150s or less"}
        stderr: {"error":"no queue is given: name one for all messages by --queue-url, or one an aggregate type by --route"}
        stderr: {"error":"DATABASE_URL is not set: set it to postgres://user:password@host:5432/database, or name a file that holds it by --database-url-file"}
        exit 2
        "#);
}
