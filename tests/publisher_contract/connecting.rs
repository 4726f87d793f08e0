//! What is checked before the first message. Every refusal is one sentence with its remedy. C19

use std::process::Command;

use aws_sdk_sqs::types::QueueAttributeName;
use ordered_outbox::publisher::sqs::{Routes, SqsError, SqsPublisher};

use crate::PUBLISH_TIMEOUT;
use crate::support::queue::{Queue, Server};
use crate::support::sqs::{Fault, Sqs};

async fn refused(routes: Routes, source: &str) -> SqsError {
    SqsPublisher::connect(routes, source, PUBLISH_TIMEOUT).await.unwrap_err()
}

async fn url_refused(url: &str) -> String {
    refused(Routes::All(url.into()), "test").await.to_string()
}

async fn refused_at(sqs: &Sqs, url: &str) -> SqsError {
    SqsPublisher::connect_at(&sqs.endpoint(), Routes::All(url.into()), "test", PUBLISH_TIMEOUT).await.unwrap_err()
}

#[tokio::test]
async fn a_standard_queue_is_refused() {
    for server in Server::ALL {
        let queue = Queue::standard_on(server).await;
        let routes = Routes::All(queue.url().into());
        let error = SqsPublisher::connect_at(queue.endpoint(), routes, "test", PUBLISH_TIMEOUT).await.unwrap_err();
        let expected = format!(
            "{} is a standard queue, which keeps no order: create a FIFO queue, whose name ends in .fifo",
            queue.url()
        );
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn a_queue_that_does_not_say_it_is_fifo_is_refused_whatever_its_name() {
    let sqs = Sqs::start();
    let url = sqs.create("orders.fifo", &[(QueueAttributeName::FifoQueue, "false")]);
    assert_eq!(refused_at(&sqs, &url).await, SqsError::StandardQueue(url));
}

#[tokio::test]
async fn a_missing_queue_is_refused_even_if_another_one_is_there() {
    let queue = Queue::fifo().await;
    let missing = queue.url().replace("outbox-test", "outbox-missing");
    let routes = [("order", queue.url()), ("payment", &missing)].map(|(kind, url)| (kind.to_owned(), url.to_owned()));
    let error = refused(Routes::ByAggregateType(routes.into()), "test").await.to_string();
    let expected = format!(
        "there is no queue {missing} (AWS.SimpleQueueService.NonExistentQueue): create it, or correct account, region \
         and name in the URL"
    );
    assert_eq!(error, expected);
}

#[tokio::test]
async fn a_url_of_another_region_is_refused() {
    let url = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo";
    let expected =
        format!("queue URL {url} is in region eu-west-1, but us-east-1 is configured: set AWS_REGION=eu-west-1");
    assert_eq!(url_refused(url).await, expected);
}

#[tokio::test]
async fn a_malformed_url_is_refused_without_its_secrets() {
    assert_eq!(
        url_refused("orders.fifo").await,
        "queue URL \"orders.fifo\" does not begin with https:// or http://: give it as \
         https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.fifo"
    );
    let error = url_refused("https://user:secret@host/1/orders.fifo?key=secret").await;
    assert!(error.contains("holds a user name or password") && !error.contains("secret"), "{error}");
}

#[tokio::test]
async fn no_routes_and_an_unusable_source_name_are_refused() {
    let none = refused(Routes::ByAggregateType([].into()), "test").await;
    assert_eq!(none.to_string(), "no queue is routed: give one queue URL, or one an aggregate type");
    let long = "s".repeat(108);
    for source in ["", "two words", "größe", &long] {
        let error = refused(Routes::All("https://host/1/q.fifo".into()), source).await.to_string();
        assert!(error.contains("is not usable: choose 1 to 107 ASCII letters"), "{error}");
    }
}

#[tokio::test]
async fn a_refusal_of_sqs_is_told_with_its_remedy() {
    for (status, code, expected) in [
        (403, "AccessDenied", "is denied (AccessDenied): allow sqs:GetQueueAttributes and sqs:SendMessage on it"),
        (403, "InvalidClientTokenId", "does not accept the AWS credentials (InvalidClientTokenId): renew them"),
        (403, "ExpiredToken", "does not accept the AWS credentials (ExpiredToken): renew them"),
        (404, "InvalidAddress", "(InvalidAddress): create it, or correct account, region and name in the URL"),
        (400, "NeverHeardOf", "could not be checked (GetQueueAttributes: HTTP 400: NeverHeardOf: scripted)"),
    ] {
        let sqs = Sqs::start();
        let url = sqs.create("orders.fifo", &[]);
        sqs.script(move |_| Some(Fault::Refused(status, code)));
        let error = refused_at(&sqs, &url).await;
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_is_told_with_its_remedy() {
    let mut sqs = Sqs::start();
    let url = sqs.create("orders.fifo", &[]);
    sqs.refuse_connections().await;
    let error = refused_at(&sqs, &url).await;
    let expected = format!(
        "SQS cannot be reached for queue {url} (GetQueueAttributes: no reply: Connection refused (os error 111)): check \
         network, region and AWS_ENDPOINT_URL"
    );
    assert_eq!(error.to_string(), expected);
}

/// The error of a connect in a process whose environment is `environment` and nothing else of AWS.
fn refused_in(environment: &[(&str, &str)], url: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "connecting::connects_in_its_own_process", "--ignored", "--nocapture"])
        .env_clear()
        .envs([("AWS_EC2_METADATA_DISABLED", "true"), ("AWS_CONFIG_FILE", "/none"), ("CONNECT_TO", url)])
        .env("AWS_SHARED_CREDENTIALS_FILE", "/none")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.split_once("refused: ")).map(|(_, error)| error.to_owned()).unwrap_or(text)
}

#[tokio::test]
#[ignore = "run by the tests that need an environment of their own"]
async fn connects_in_its_own_process() {
    if let Ok(url) = std::env::var("CONNECT_TO") {
        println!("refused: {}", url_refused(&url).await);
    }
}

const AWS_QUEUE: &str = "https://sqs.us-east-1.amazonaws.com/123456789012/orders.fifo";
const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "secret")];

#[test]
fn a_region_that_is_not_configured_is_asked_for() {
    assert_eq!(
        refused_in(&KEYS, AWS_QUEUE),
        "no AWS region is configured: set AWS_REGION, or a region in the AWS profile"
    );
}

#[test]
fn credentials_that_are_not_there_are_asked_for() {
    let error = refused_in(&[("AWS_REGION", "us-east-1")], AWS_QUEUE);
    assert!(error.starts_with("no AWS credentials could be loaded: set AWS_ACCESS_KEY_ID"), "{error}");
    let half = refused_in(&[("AWS_REGION", "us-east-1"), ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")], AWS_QUEUE);
    assert!(half.starts_with("no AWS credentials could be loaded") && !half.contains("AKIDEXAMPLE"), "{half}");
}

#[test]
fn a_url_that_does_not_tell_its_region_is_refused_unless_an_endpoint_is_configured() {
    let [key, secret] = KEYS;
    let environment = [key, secret, ("AWS_REGION", "us-east-1"), ("AWS_ENDPOINT_URL", "http://127.0.0.1:9")];
    let url = "http://127.0.0.1:9/000000000000/orders.fifo";
    let error = refused_in(&environment[..3], url);
    assert!(error.contains("does not tell its region") && error.contains("or set AWS_ENDPOINT_URL"), "{error}");
    let error = refused_in(&environment, url);
    assert!(error.starts_with("SQS cannot be reached for queue"), "{error}");
}

#[test]
fn an_endpoint_that_is_no_url_is_an_error_and_not_a_panic() {
    let [key, secret] = KEYS;
    let environment = [key, secret, ("AWS_REGION", "us-east-1"), ("AWS_ENDPOINT_URL", "not a url")];
    let error = refused_in(&environment, AWS_QUEUE);
    assert!(error.contains("orders.fifo could not be checked") || error.contains("cannot be reached"), "{error}");
}
