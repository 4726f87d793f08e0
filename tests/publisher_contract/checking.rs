//! What is looked at before a start: all of it in one report, and nothing is sent.

use std::time::Duration;

use aws_sdk_sqs::types::QueueAttributeName;
use ordered_outbox::publisher::sqs::{Routes, SqsPublisher};
use ordered_outbox::{Check, State};

use crate::support::queue::{Queue, Server};
use crate::support::sqs::{EntryFault, Fault, Sqs};

/// A queue that hangs is waited for as long.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(4);

const OF_A_QUEUE: [&str; 7] =
    ["region", "queue", "FIFO", "deduplication scope", "throughput limit", "encryption", "permission to send"];

async fn checks(endpoint: &str, url: &str, expected_rate: Option<u32>) -> Vec<Check> {
    SqsPublisher::checks_at(endpoint, &Routes::All(url.into()), PUBLISH_TIMEOUT, expected_rate).await
}

/// What is not as it has to be.
async fn troubles(endpoint: &str, url: &str, expected_rate: Option<u32>) -> Vec<(State, &'static str, String)> {
    let checks = checks(endpoint, url, expected_rate).await.into_iter().filter(|check| check.state != State::Ok);
    checks.map(|check| (check.state, check.name, check.finding.replace(url, "URL"))).collect()
}

async fn only(sqs: &Sqs, url: &str) -> String {
    let troubles = troubles(&sqs.endpoint(), url, None).await;
    let [(state, name, finding)] = &troubles[..] else { panic!("{troubles:?}") };
    format!("{state}: {name}: {finding}")
}

#[tokio::test]
async fn a_fifo_queue_passes_every_check_and_gets_no_message() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 262_144).await;
        let checks = checks(queue.endpoint(), queue.url(), Some(300)).await;
        let names: Vec<_> = checks.iter().map(|check| (check.state, check.name)).collect();
        let expected: Vec<_> = ["SDK retries", "credentials"].into_iter().chain(OF_A_QUEUE).collect();
        assert_eq!(names, expected.iter().map(|name| (State::Ok, *name)).collect::<Vec<_>>(), "{checks:?}");
        assert_eq!(checks[3].finding, "exists, and takes messages of up to 262144 bytes");
        assert!(checks[2..].iter().all(|check| check.subject.as_deref() == Some(queue.url())), "{checks:?}");
        assert_eq!(queue.receive_all().await, []);
    }
}

// C19
#[tokio::test]
async fn a_standard_queue_is_a_problem_and_is_not_asked_to_refuse_a_message() {
    for server in Server::ALL {
        let queue = Queue::standard_on(server).await;
        let standard = "URL is a standard queue, which keeps no order: create a FIFO queue, whose name ends in .fifo";
        let found = troubles(queue.endpoint(), queue.url(), None).await;
        assert_eq!(found, [(State::Problem, "FIFO", standard.to_owned())]);
        assert_eq!(queue.receive_all().await, []);
    }
    // one that has the name and does not say that it is one
    let sqs = Sqs::start();
    let url = sqs.create("orders.fifo", &[(QueueAttributeName::FifoQueue, "false")]);
    assert!(only(&sqs, &url).await.starts_with("problem: FIFO: URL is a standard queue"));
    assert!(sqs.arrivals().is_empty());
}

// C19
#[tokio::test]
async fn every_queue_is_looked_at_whatever_is_wrong_with_another_one() {
    let sqs = Sqs::start();
    let orders = sqs.create("orders.fifo", &[]);
    let missing = orders.replace("orders", "missing");
    let standard = sqs.create("standard", &[(QueueAttributeName::FifoQueue, "false")]);
    let abroad = "https://sqs.eu-west-1.amazonaws.com/1/orders.fifo";
    let secret = "https://user:hunter2@host/1/orders.fifo";
    let urls = [&orders, &missing, &standard, abroad, secret];
    let routes = urls.iter().enumerate().map(|(place, url)| (place.to_string(), (*url).to_owned()));
    let routes = Routes::ByAggregateType(routes.collect());
    let checks = SqsPublisher::checks_at(&sqs.endpoint(), &routes, PUBLISH_TIMEOUT, None).await;
    let problems = checks.iter().filter(|check| check.state == State::Problem);
    let problems: Vec<_> = problems.map(|check| (check.subject.as_deref().unwrap(), check.name)).collect();
    let mut expected = [
        (missing.as_str(), "queue"),
        (standard.as_str(), "FIFO"),
        (abroad, "region"),
        ("https://host/1/orders.fifo", "queue"),
    ];
    expected.sort_unstable();
    let mut problems = problems;
    problems.sort_unstable();
    assert_eq!(problems, expected);
    let fine = checks.iter().filter(|check| check.subject.as_deref() == Some(&orders));
    assert_eq!(
        fine.map(|check| (check.state, check.name)).collect::<Vec<_>>(),
        OF_A_QUEUE.map(|name| (State::Ok, name))
    );
    assert!(!format!("{checks:?}").contains("hunter2"), "{checks:?}");
}

#[tokio::test]
async fn a_rate_that_the_queue_cannot_take_is_a_problem_and_one_that_needs_full_requests_a_warning() {
    let sqs = Sqs::start();
    let plain = sqs.create("plain.fifo", &[]);
    let high = [
        (QueueAttributeName::DeduplicationScope, "messageGroup"),
        (QueueAttributeName::FifoThroughputLimit, "perMessageGroupId"),
    ];
    let high = sqs.create("high.fifo", &high);
    let found = async |url: &str, rate: Option<u32>| {
        let found = troubles(&sqs.endpoint(), url, rate).await;
        let lines = found.into_iter().map(|(state, name, finding)| format!("{state}: {name}: {finding}"));
        lines.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(found(&plain, None).await, "");
    assert_eq!(found(&plain, Some(300)).await, "");
    assert_eq!(found(&high, Some(50_000)).await, "");
    let lines = [found(&plain, Some(301)).await, found(&plain, Some(3_000)).await, found(&plain, Some(3_001)).await];
    insta::assert_snapshot!(lines.join("\n"), @r"
        warning: throughput limit: 301 messages a second are expected and the queue takes 300 requests a second of up to 10 messages, so each has to carry 2, of as many aggregates: set DeduplicationScope=messageGroup and FifoThroughputLimit=perMessageGroupId to be free of that
        warning: throughput limit: 3000 messages a second are expected and the queue takes 300 requests a second of up to 10 messages, so each has to carry 10, of as many aggregates: set DeduplicationScope=messageGroup and FifoThroughputLimit=perMessageGroupId to be free of that
        problem: throughput limit: 3001 messages a second are expected and the queue takes 300 requests a second of up to 10 messages: set DeduplicationScope=messageGroup and FifoThroughputLimit=perMessageGroupId
        ");
}

#[tokio::test]
async fn a_queue_with_a_key_of_its_own_is_a_warning_since_only_a_send_would_tell() {
    let sqs = Sqs::start();
    let url = sqs.create("orders.fifo", &[(QueueAttributeName::KmsMasterKeyId, "alias/orders")]);
    insta::assert_snapshot!(only(&sqs, &url).await, @"warning: encryption: messages are encrypted by KMS key alias/orders, and only a send can show that it may be used: allow kms:GenerateDataKey and kms:Decrypt on it");
}

#[tokio::test]
async fn who_may_not_send_is_told_without_a_send() {
    let mut lines = Vec::new();
    for (status, code) in [
        (403, "AccessDenied"),
        (403, "ExpiredToken"),
        (400, "KmsDisabled"),
        (400, "AWS.SimpleQueueService.NonExistentQueue"),
        (400, "NeverHeardOf"),
        (403, "ThrottlingException"),
        (503, "ServiceUnavailable"),
    ] {
        let sqs = Sqs::start();
        let url = sqs.create("orders.fifo", &[]);
        sqs.script(move |request| request.sends().then_some(Fault::Refused(status, code)));
        lines.push(only(&sqs, &url).await);
        assert!(sqs.accepted().is_empty());
    }
    insta::assert_snapshot!(lines.join("\n"), @r"
        problem: permission to send: access to queue URL is denied (AccessDenied): allow sqs:GetQueueAttributes and sqs:SendMessage on it
        problem: permission to send: SQS does not accept the AWS credentials (ExpiredToken): renew them, and check the clock of this machine
        problem: permission to send: SQS may not use the queue's KMS key (KmsDisabled): enable it, and allow kms:GenerateDataKey and kms:Decrypt on it
        problem: permission to send: there is no queue URL (AWS.SimpleQueueService.NonExistentQueue): create it, or correct account, region and name in the URL
        unknown: permission to send: SQS said NeverHeardOf where it should refuse a message: check again
        unknown: permission to send: SQS said ThrottlingException where it should refuse a message: check again
        unknown: permission to send: SQS said ServiceUnavailable where it should refuse a message: check again
        ");
}

#[tokio::test]
async fn an_entry_that_is_refused_for_another_reason_than_its_group_is_no_proof() {
    let sqs = Sqs::start();
    let url = sqs.create("orders.fifo", &[]);
    let refused = |code| Fault::Entries(vec![Some(EntryFault::Refused(code, true))]);
    sqs.script(move |request| request.sends().then(|| refused("AccessDenied")));
    assert!(only(&sqs, &url).await.starts_with("problem: permission to send: access to queue URL is denied"));
    sqs.script(move |request| request.sends().then(|| refused("InternalError")));
    assert!(only(&sqs, &url).await.starts_with("unknown: permission to send: SQS said InternalError"));
}

#[tokio::test]
async fn a_queue_that_gives_no_answer_never_passes() {
    let mut sqs = Sqs::start();
    let url = sqs.create("orders.fifo", &[]);
    sqs.script(|request| request.sends().then_some(Fault::Hang));
    let told = only(&sqs, &url).await;
    assert!(told.starts_with("unknown: permission to send: SendMessageBatch: no reply in time"), "{told}");
    sqs.refuse_connections().await;
    assert!(only(&sqs, &url).await.starts_with("problem: queue: SQS cannot be reached for queue URL"));
}

#[tokio::test]
async fn the_sdk_tries_twice_inside_of_the_publish_timeout_and_a_short_one_is_a_warning() {
    let sqs = Sqs::start();
    let routes = Routes::All(sqs.create("orders.fifo", &[]));
    let retries = async |publish_timeout| {
        let checks = SqsPublisher::checks_at(&sqs.endpoint(), &routes, publish_timeout, None).await;
        format!("{}: {}", checks[0].state, checks[0].finding)
    };
    let lines = [retries(Duration::from_secs(10)).await, retries(Duration::from_secs(1)).await];
    insta::assert_snapshot!(lines.join("\n"), @r"
        ok: 2 tries of 4s 450ms within 9s, publish timeout 10s
        warning: 2 tries of 400ms within 900ms, publish timeout 1s: SQS may need longer to reply, choose a publish timeout of 2s or more
        ");
}
