//! `outbox check`: everything is looked at, every problem comes with its remedy, and nothing changes.

use serde_json::{Value, json};

use crate::outbox::{Outbox, Ran, filtered};
use crate::support::queue::Queue;
use crate::support::sqs::{Fault, Sqs};
use crate::support::{Database, Postgres, execute, rows, seed};

fn check(database: &Database, queue: &Queue, args: &[&str]) -> Ran {
    Outbox::on(database).with_aws().env("OUTBOX_QUEUE_URL", queue.url()).run(&[&["check"], args].concat())
}

/// What differs from server to server.
fn stable(assert: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"PostgreSQL 18\.\d+", "PostgreSQL 18.X");
    settings.add_filter(r"\d+m?s apart, give or take \d+ms", "N apart, give or take N");
    settings.add_filter(r"\d+ more are free", "N more are free");
    settings.add_filter(r"\b[0-9a-f]{12}\b", "SOURCE");
    settings.bind(|| filtered(assert));
}

#[tokio::test]
async fn all_is_well_where_all_is_well_and_no_row_or_queue_is_touched() {
    let (database, queue) = (Database::new().await, Queue::fifo().await);
    let store = database.store().await;
    seed(&store, &[("order-1", "a")]).await;
    let before = rows(&store).await;
    stable(|| {
        insta::assert_snapshot!(check(&database, &queue, &[]), @r"
        state  check                found
        ok     lease                publish timeout 10s, lease 1m, SQS drops copies for 5m
        ok     settings             100 rows a claim, 16 requests in flight
        ok     connection           outbox@HOST:PORT/DATABASE
        ok     database version     PostgreSQL 18.X
        ok     writable             the server takes writes
        ok     isolation level      read committed
        ok     planner settings     as the statements need them
        ok     pool size            4 connections: one claims, one writes results, others maintain; N more are free
        ok     clock skew           N apart, give or take N
        ok     schema version       3
        ok     privileges           SELECT and UPDATE on outbox
        ok     indexes              7 present and valid
        ok     source name          SOURCE
        ok     SDK retries          2 tries of 4s 450ms within 9s, publish timeout 10s
        ok     credentials          found by the AWS default chain
        ok     region               us-east-1
        ok     queue                exists, and takes messages of up to 1048576 bytes
        ok     FIFO                 keeps order
        ok     deduplication scope  queue
        ok     throughput limit     300 requests a second of up to 10 messages
        ok     encryption           no KMS key is needed
        ok     permission to send   SQS refused a message without group id, and not its sender

        22 checks: 22 ok
        exit 0
        ");
    });
    let ran = check(&database, &queue, &["--json"]);
    let report = ran.json();
    assert_eq!((ran.code, ran.stderr.as_str(), &report["ok"]), (0, "", &json!(true)), "{ran}");
    for check in report["checks"].as_array().unwrap() {
        assert_eq!(check["state"], "ok", "{check}");
        let is_of_the_queue = check["subject"] == json!(queue.url());
        assert!(is_of_the_queue || check["subject"] == Value::Null, "{check}");
    }
    assert_eq!(rows(&store).await, before);
    assert_eq!(queue.receive_all().await, []);
}

// C19
#[tokio::test]
async fn every_problem_is_in_one_report_with_its_remedy() {
    let (database, queue) = (Database::unmigrated(Postgres::Latest).await, Queue::fifo().await);
    queue.delete().await;
    let ran = check(&database, &queue, &["--lease=4m", "--publish-timeout=3m", "--source=größe"]);
    stable(|| {
        insta::assert_snapshot!(ran.to_string().replace(queue.url(), "URL"), @r#"
        state    check             found
        problem  lease             publish timeout 3m is not well under the lease 4m: choose at most half of it, for example 10s and 60s
        problem  lease             lease 4m is not far below the 5 minutes for which SQS drops copies: choose 150s or less
        ok       settings          100 rows a claim, 16 requests in flight
        ok       connection        outbox@HOST:PORT/DATABASE
        ok       database version  PostgreSQL 18.X
        ok       writable          the server takes writes
        ok       isolation level   read committed
        ok       planner settings  as the statements need them
        ok       pool size         4 connections: one claims, one writes results, others maintain; N more are free
        ok       clock skew        N apart, give or take N
        problem  schema version    the database has no outbox: run `outbox migrate` first
        unknown  privileges        see the schema version first, then check again
        unknown  indexes           see the schema version first, then check again
        problem  source name       source name "größe" is not usable: choose 1 to 107 ASCII letters, digits and punctuation, no space
        ok       SDK retries       2 tries of 1m 20s 950ms within 2m 42s, publish timeout 3m
        ok       credentials       found by the AWS default chain
        ok       region            us-east-1
        problem  queue             there is no queue URL (AWS.SimpleQueueService.NonExistentQueue): create it, or correct account, region and name in the URL

        18 checks: 11 ok, 2 unknown, 5 problems
        stderr: outbox: 18 checks: 11 ok, 2 unknown, 5 problems: do what the report says, then check again
        exit 1
        "#);
    });
}

#[tokio::test]
async fn a_warning_is_no_failure() {
    let (database, queue) = (Database::new().await, Queue::fifo().await);
    let ran = check(&database, &queue, &["--expected-rate=2000"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran}");
    assert!(ran.stdout.contains("warning  throughput limit") && ran.stdout.ends_with("21 ok, 1 warning\n"), "{ran}");
    let too_much = check(&database, &queue, &["--expected-rate=20000", "--json"]);
    assert_eq!(too_much.code, 1, "{too_much}");
    assert_eq!(too_much.json()["ok"], json!(false));
    assert!(too_much.json_error().starts_with("22 checks: 21 ok, 1 problem"), "{too_much}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_tell_fails_a_check_and_is_a_warning_in_the_log_of_a_run() {
    let (database, sqs) = (Database::new().await, Sqs::start());
    let url = sqs.create("orders.fifo", &[]);
    sqs.script(|request| (request.sends() && !request.offers()).then_some(Fault::Refused(400, "NeverHeardOf")));
    let outbox = || Outbox::on(&database).with_aws().env("AWS_ENDPOINT_URL", &sqs.endpoint());
    let ran = outbox().run(&["check", "--queue-url", &url]);
    assert_eq!(ran.code, 1, "{ran}");
    assert!(ran.stdout.contains("unknown  permission to send"), "{ran}");
    let ran = outbox().run(&["run", "--drain", "--queue-url", &url]);
    assert_eq!(ran.code, 0, "{ran}");
    assert!(ran.stderr.contains("SQS said NeverHeardOf") && ran.stderr.contains("WARN"), "{ran}");
}

#[tokio::test]
async fn the_checks_of_a_start_are_those_of_check() {
    let (database, queue) = (Database::new().await, Queue::fifo().await);
    execute(&database.store().await, "DROP INDEX outbox_leased").await;
    let remedy = "index outbox_leased is missing: CREATE INDEX CONCURRENTLY outbox_leased ON outbox USING btree \
                  (lease_until, id) WHERE (status = 'processing'::text)";
    let checked = check(&database, &queue, &[]);
    assert!(checked.code == 1 && checked.stdout.contains(remedy), "{checked}");
    let run = Outbox::on(&database).with_aws().run(&["run", "--drain", "--queue-url", queue.url()]);
    assert_eq!(run.to_string(), format!("stderr: outbox: {remedy}\nexit 1"));
}

#[tokio::test]
async fn the_queues_are_told_apart_where_there_are_several() {
    let (database, orders, payments) = (Database::new().await, Queue::fifo().await, Queue::fifo().await);
    payments.delete().await;
    let routes = format!("order={},payment={}", orders.url(), payments.url());
    let ran = Outbox::on(&database).with_aws().env("OUTBOX_ROUTES", &routes).run(&["check"]);
    assert!(ran.stdout.contains(&format!("queue of {}", orders.url())), "{ran}");
    assert!(ran.stdout.contains(&format!("queue of {}", payments.url())), "{ran}");
}

#[test]
fn no_secret_of_a_url_or_of_the_environment_is_shown() {
    let url = "https://user:hunter2@sqs.us-east-1.amazonaws.com/1/orders.fifo?key=hunter2";
    let outbox = || {
        let outbox = Outbox::new().env("AWS_REGION", "us-east-1").env("AWS_ACCESS_KEY_ID", "hunter2");
        let outbox = outbox.env("AWS_SECRET_ACCESS_KEY", "hunter2").env("OUTBOX_QUEUE_URL", url);
        outbox.env("DATABASE_URL", "postgres://outbox:hunter2@127.0.0.1:1/outbox")
    };
    for args in [&["check"][..], &["check", "--json"], &["run"]] {
        let ran = outbox().run(args);
        assert_eq!(ran.code, 1, "{ran}");
        assert!(!ran.to_string().contains("hunter2"), "{ran}");
    }
}
