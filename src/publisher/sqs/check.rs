//! Looks at credentials and queues without sending anything.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{QueueAttributeName, SendMessageBatchRequestEntry};
use futures::future::join_all;
use humantime::format_duration;

use super::attributes::Attributes;
use super::connect::{check_credentials, check_region, check_source, client, load, parse_url};
use super::failure::Failed;
use super::{MAX_ENTRIES, Routes, SqsError};
use crate::check::{Check, PATIENCE, State};
use crate::outcome::Trouble;
use crate::publisher::classify::{Cause, Failure, Fault, cause, request_fault};
use crate::publisher::queue_url::shown;

/// Requests a second that a FIFO queue takes for each kind of them, high throughput mode aside. Source: the SQS developer
/// guide, "Amazon SQS message quotas".
const REQUESTS_PER_SECOND: u32 = 300;

const CREDENTIALS: &str = "credentials";
const RETRIES: &str = "SDK retries";
const QUEUE: &str = "queue";
const REGION: &str = "region";
const FIFO: &str = "FIFO";
const DEDUPLICATION: &str = "deduplication scope";
const THROUGHPUT: &str = "throughput limit";
const ENCRYPTION: &str = "encryption";
const PERMISSION: &str = "permission to send";

/// A try shorter than this may end before SQS had a fair chance to reply.
const SHORT_TRY: Duration = Duration::from_millis(500);

pub(super) async fn checks(
    endpoint: Option<&str>,
    routes: &Routes,
    publish_timeout: Duration,
    expected_rate: Option<u32>,
) -> Vec<Check> {
    let urls = routes.urls();
    if urls.is_empty() {
        return vec![Check::problem(QUEUE, &SqsError::NoRoutes)];
    }
    let config = load(endpoint).await;
    let client = client(&config, publish_timeout);
    let credentials = match check_credentials(&config).await {
        Ok(()) => Check::ok(CREDENTIALS, "found by the AWS default chain"),
        Err(error) => Check::problem(CREDENTIALS, &error),
    };
    let may_ask = credentials.state == State::Ok;
    let mut found = vec![retries(&client, publish_timeout), credentials];
    let queues = urls.iter().map(|url| async {
        let checks = queue(&config, may_ask.then_some(&client), url, expected_rate).await;
        checks.into_iter().map(|check| check.of(&shown(url))).collect::<Vec<_>>()
    });
    found.extend(join_all(queues).await.concat());
    found
}

pub(super) fn source(source: &str) -> Check {
    match check_source(source) {
        Ok(()) => Check::ok("source name", source),
        Err(error) => Check::problem("source name", &error),
    }
}

/// What the very client is set to that would send, whatever the environment asks of SDKs.
fn retries(client: &Client, publish_timeout: Duration) -> Check {
    let config = client.config();
    let tries = config.retry_config().map_or(1, aws_sdk_sqs::config::retry::RetryConfig::max_attempts);
    let times = config.timeout_config().map(|times| (times.operation_timeout(), times.operation_attempt_timeout()));
    let Some((Some(whole), Some(one))) = times else {
        return Check::problem(
            RETRIES,
            "requests of the SDK have no time limit: this is a defect of the publisher, report it",
        );
    };
    let [shown_whole, shown_one, shown_timeout] = [whole, one, publish_timeout].map(format_duration);
    let finding = format!("{tries} tries of {shown_one} within {shown_whole}, publish timeout {shown_timeout}");
    if whole >= publish_timeout {
        let finding = format!("{finding}: a try could outlive it, which is a defect of the publisher, report it");
        return Check::problem(RETRIES, &finding);
    }
    if one < SHORT_TRY {
        let finding = format!("{finding}: SQS may need longer to reply, choose a publish timeout of 2s or more");
        return Check::new(RETRIES, State::Warning, finding);
    }
    Check::ok(RETRIES, finding)
}

/// Without a client nothing is asked.
async fn queue(config: &SdkConfig, client: Option<&Client>, url: &str, expected_rate: Option<u32>) -> Vec<Check> {
    let parsed = match parse_url(url) {
        Ok(parsed) => parsed,
        Err(error) => return vec![Check::problem(if is_about_fifo(&error) { FIFO } else { QUEUE }, &error)],
    };
    let region = match check_region(config, url, parsed) {
        Ok(region) => Check::ok(REGION, region),
        // another region has no such queue, or another one of the same name
        Err(error) => return vec![Check::problem(REGION, &error)],
    };
    let Some(client) = client else {
        return vec![region, Check::new(QUEUE, State::Unknown, "see the credentials first, then check again")];
    };
    let attributes = match tokio::time::timeout(PATIENCE, Attributes::read(client, url)).await {
        Ok(Ok(attributes)) => attributes,
        Ok(Err(error)) => return vec![region, Check::problem(QUEUE, &error)],
        Err(_) => return vec![region, Check::new(QUEUE, State::Unknown, late())],
    };
    let exists = Check::ok(QUEUE, format!("exists, and takes messages of up to {} bytes", attributes.max_bytes()));
    if !attributes.is_fifo() {
        // nor is it asked to refuse a message: without a group id it would take it
        return vec![region, exists, Check::problem(FIFO, &SqsError::StandardQueue(url.to_owned()))];
    }
    vec![
        region,
        exists,
        Check::ok(FIFO, "keeps order"),
        deduplication(&attributes),
        throughput(&attributes, expected_rate),
        encryption(&attributes),
        permission(client, url).await,
    ]
}

const fn is_about_fifo(error: &SqsError) -> bool {
    matches!(error, SqsError::StandardQueue(_))
}

fn late() -> String {
    format!("no answer of SQS within {}: check network, region and AWS_ENDPOINT_URL", format_duration(PATIENCE))
}

/// Either scope will do: a row has one id and one group for ever.
fn deduplication(attributes: &Attributes) -> Check {
    match attributes.get(&QueueAttributeName::DeduplicationScope) {
        None => Check::ok(DEDUPLICATION, "not told, so the default: the whole queue"),
        Some(scope @ ("queue" | "messageGroup")) => Check::ok(DEDUPLICATION, scope),
        Some(other) => {
            let finding =
                format!("{other} is none that this was made for: set DeduplicationScope to queue or messageGroup");
            Check::new(DEDUPLICATION, State::Unknown, finding)
        }
    }
}

fn throughput(attributes: &Attributes, expected_rate: Option<u32>) -> Check {
    const HIGH: &str = "DeduplicationScope=messageGroup and FifoThroughputLimit=perMessageGroupId";
    let is_high = attributes.get(&QueueAttributeName::FifoThroughputLimit) == Some("perMessageGroupId")
        && attributes.get(&QueueAttributeName::DeduplicationScope) == Some("messageGroup");
    let rate = expected_rate.unwrap_or(0);
    if is_high {
        return Check::ok(THROUGHPUT, "high throughput mode: the quota of the region");
    }
    let limit = format!("{REQUESTS_PER_SECOND} requests a second of up to {MAX_ENTRIES} messages");
    if rate <= REQUESTS_PER_SECOND {
        return Check::ok(THROUGHPUT, limit);
    }
    let fill = rate.div_ceil(REQUESTS_PER_SECOND);
    if usize::try_from(fill).is_ok_and(|fill| fill <= MAX_ENTRIES) {
        let finding = format!(
            "{rate} messages a second are expected and the queue takes {limit}, so each has to carry {fill}, of as many \
             aggregates: set {HIGH} to be free of that"
        );
        return Check::new(THROUGHPUT, State::Warning, finding);
    }
    let finding = format!("{rate} messages a second are expected and the queue takes {limit}: set {HIGH}");
    Check::problem(THROUGHPUT, &finding)
}

fn encryption(attributes: &Attributes) -> Check {
    match attributes.get(&QueueAttributeName::KmsMasterKeyId).filter(|key| !key.is_empty()) {
        None => Check::ok(ENCRYPTION, "no KMS key is needed"),
        Some(key) => {
            let finding = format!(
                "messages are encrypted by KMS key {key}, and only a send can show that it may be used: allow \
                 kms:GenerateDataKey and kms:Decrypt on it"
            );
            Check::new(ENCRYPTION, State::Warning, finding)
        }
    }
}

/// Asks for what SQS has to refuse once it has let the caller in: to send a message without a group id to a FIFO queue.
async fn permission(client: &Client, url: &str) -> Check {
    let entry = SendMessageBatchRequestEntry::builder().id("check").message_body("check").build();
    let entry = match entry {
        Ok(entry) => entry,
        Err(error) => return Check::new(PERMISSION, State::Unknown, format!("not asked ({error}): report this")),
    };
    let request = client.send_message_batch().queue_url(url).entries(entry).send();
    let Ok(reply) = tokio::time::timeout(PATIENCE, request).await else {
        return Check::new(PERMISSION, State::Unknown, late());
    };
    match reply {
        Err(error) => judge(url, &Failed::of("SendMessageBatch", &error)),
        Ok(reply) => match reply.failed.first() {
            Some(entry) if cause(&entry.code) == Some(Cause::Content) => granted(),
            Some(entry) => refused(url, &entry.code),
            None => {
                let finding = "a message without group id was taken, which no FIFO queue of SQS does: see what the \
                               endpoint leads to, and look for a message `check` in the queue";
                Check::problem(PERMISSION, &finding)
            }
        },
    }
}

fn granted() -> Check {
    Check::ok(PERMISSION, "SQS refused a message without group id, and not its sender")
}

fn judge(url: &str, failed: &Failed) -> Check {
    match (&failed.failure, request_fault(&failed.failure)) {
        (_, Fault::Message) => granted(),
        (Failure::Refused { code: Some(code), .. }, _) => refused(url, code),
        _ => Check::new(PERMISSION, State::Unknown, format!("{}: check again", failed.text)),
    }
}

fn refused(url: &str, code: &str) -> Check {
    let (url, code) = (url.to_owned(), code.to_owned());
    match cause(&code) {
        Some(Cause::Trouble(Trouble::Access)) => Check::problem(PERMISSION, &SqsError::AccessDenied { url, code }),
        Some(Cause::Trouble(Trouble::Credentials)) => Check::problem(PERMISSION, &SqsError::CredentialsRefused(code)),
        Some(Cause::Trouble(Trouble::Queue)) => Check::problem(PERMISSION, &SqsError::QueueMissing { url, code }),
        Some(Cause::Trouble(Trouble::Kms)) => {
            let finding = format!(
                "SQS may not use the queue's KMS key ({code}): enable it, and allow kms:GenerateDataKey and kms:Decrypt on it"
            );
            Check::problem(PERMISSION, &finding)
        }
        _ => Check::new(
            PERMISSION,
            State::Unknown,
            format!("SQS said {code} where it should refuse a message: check again"),
        ),
    }
}
