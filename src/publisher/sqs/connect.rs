//! What is checked before the first message: source name, URLs, region, credentials, every queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::ProvideCredentials as _;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::types::QueueAttributeName;
use futures::future::try_join_all;

use super::failure::Failed;
use super::retry::ThrottlingComesBack;
use super::{Routes, Shared, SqsError, SqsPublisher, Targets};
use crate::outcome::Trouble;
use crate::publisher::Destination;
use crate::publisher::classify::{Cause, Failure, cause};
use crate::publisher::preflight::is_source;
use crate::publisher::queue_url::{QueueUrl, shown};
use crate::sendable::MAX_BYTES;

/// Tries of one request, the first included. The second is for a connection that went stale; the dispatcher paces
/// the others.
const ATTEMPTS: u32 = 2;
/// Longest wait of the SDK before the second try.
const RETRY_WAIT: Duration = Duration::from_millis(100);
/// Longest time the SDK may look for credentials at start. Its own limit is far beyond anybody's patience.
const CREDENTIALS_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) async fn connect(
    endpoint: Option<&str>,
    routes: &Routes,
    source: &str,
    publish_timeout: Duration,
) -> Result<SqsPublisher, SqsError> {
    if !is_source(source) {
        return Err(SqsError::Source(source.chars().take(200).collect()));
    }
    let urls = routes.urls();
    if urls.is_empty() {
        return Err(SqsError::NoRoutes);
    }
    let queues = urls.iter().map(|url| check_url(url)).collect::<Result<Vec<_>, _>>()?;

    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(endpoint) = endpoint {
        loader = loader.endpoint_url(endpoint);
    }
    let config = loader.load().await;
    check_region(&config, &urls, &queues)?;
    check_credentials(&config).await?;

    let client = client(&config, publish_timeout);
    let checks = urls.iter().map(|url| async { Ok((Destination::new(url), max_bytes(&client, url).await?)) });
    let max_bytes: HashMap<_, _> = try_join_all(checks).await?.into_iter().collect();
    let targets = match routes {
        Routes::All(url) => Targets::All(Destination::new(url)),
        Routes::ByAggregateType(routes) => {
            Targets::ByAggregateType(routes.iter().map(|(kind, url)| (kind.clone(), Destination::new(url))).collect())
        }
    };
    Ok(SqsPublisher { shared: Arc::new(Shared { client, source: source.to_owned(), targets, max_bytes }) })
}

fn check_url(url: &str) -> Result<QueueUrl<'_>, SqsError> {
    let queue = QueueUrl::parse(url).map_err(|problem| SqsError::MalformedUrl { url: shown(url), problem })?;
    if queue.is_fifo() { Ok(queue) } else { Err(SqsError::StandardQueue(url.to_owned())) }
}

/// The SDK sends to the endpoint of the region that is configured, whatever the URL says.
fn check_region(config: &SdkConfig, urls: &[&str], queues: &[QueueUrl<'_>]) -> Result<(), SqsError> {
    let configured = config.region().ok_or(SqsError::NoRegion)?.as_ref();
    let elsewhere = config.endpoint_url().is_some() || std::env::var_os("AWS_ENDPOINT_URL_SQS").is_some();
    for (url, queue) in urls.iter().zip(queues) {
        match queue.region() {
            Some(actual) if actual == configured => {}
            Some(actual) => {
                return Err(SqsError::RegionMismatch {
                    url: (*url).to_owned(),
                    actual: actual.to_owned(),
                    configured: configured.to_owned(),
                });
            }
            None if elsewhere => {}
            None => return Err(SqsError::RegionUnknown((*url).to_owned())),
        }
    }
    Ok(())
}

async fn check_credentials(config: &SdkConfig) -> Result<(), SqsError> {
    let provider = config.credentials_provider().ok_or(SqsError::NoCredentials)?;
    // the cause is not passed on: it can quote what a credential process printed
    match tokio::time::timeout(CREDENTIALS_TIMEOUT, provider.provide_credentials()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(SqsError::NoCredentials),
    }
}

/// A client whose requests end, tries and waits included, before the publish timeout does: so the SDK's word on what
/// went wrong arrives, and no try is left running.
fn client(config: &SdkConfig, publish_timeout: Duration) -> Client {
    let whole = publish_timeout.mul_f64(0.9);
    let attempt = whole.saturating_sub(RETRY_WAIT).max(whole / 2) / ATTEMPTS;
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(attempt.min(Duration::from_secs(3)))
        .operation_attempt_timeout(attempt)
        .operation_timeout(whole)
        .build();
    let retries = RetryConfig::standard()
        .with_max_attempts(ATTEMPTS)
        .with_initial_backoff(RETRY_WAIT)
        .with_max_backoff(RETRY_WAIT);
    let config = aws_sdk_sqs::config::Builder::from(config)
        .timeout_config(timeouts)
        .retry_config(retries)
        .retry_classifier(ThrottlingComesBack)
        .build();
    Client::from_conf(config)
}

/// The most bytes the queue takes in a message; an error if it is not a FIFO queue we can see.
async fn max_bytes(client: &Client, url: &str) -> Result<usize, SqsError> {
    // All, because AWS answers an error to a standard queue that is asked for FifoQueue by name
    let request = client.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::All);
    let reply = request.send().await.map_err(|error| refused(url, Failed::of("GetQueueAttributes", &error)))?;
    let attribute = |name| reply.attributes().and_then(|attributes| attributes.get(&name)).map(String::as_str);
    if attribute(QueueAttributeName::FifoQueue) != Some("true") {
        return Err(SqsError::StandardQueue(url.to_owned()));
    }
    let maximum = attribute(QueueAttributeName::MaximumMessageSize).and_then(|text| text.parse().ok());
    Ok(maximum.unwrap_or(MAX_BYTES).min(MAX_BYTES))
}

fn refused(url: &str, failed: Failed) -> SqsError {
    let (url, problem) = (url.to_owned(), failed.text);
    match failed.failure {
        Failure::NoReply | Failure::TimedOut | Failure::Garbled => SqsError::Unreachable { url, problem },
        Failure::NoCredentials => SqsError::NoCredentials,
        Failure::Refused { code: Some(code), .. } => match cause(&code) {
            Some(Cause::Trouble(Trouble::Queue)) => SqsError::QueueMissing { url, code },
            Some(Cause::Trouble(Trouble::Access)) => SqsError::AccessDenied { url, code },
            Some(Cause::Trouble(Trouble::Credentials)) => SqsError::CredentialsRefused(code),
            _ => SqsError::Check { url, problem },
        },
        Failure::Refused { code: None, .. } | Failure::NotBuilt => SqsError::Check { url, problem },
    }
}
