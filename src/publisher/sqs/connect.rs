//! What is checked before the first message: source name, URLs, region, credentials, every queue.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::ProvideCredentials as _;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use futures::future::try_join_all;

use super::attributes::Attributes;
use super::renewing::RenewingClient;
use super::retry::ThrottlingComesBack;
use super::{Routes, Shared, SqsError, SqsPublisher, Targets};
use crate::check::PATIENCE;
use crate::publisher::Destination;
use crate::publisher::preflight::is_source;
use crate::publisher::queue_url::{QueueUrl, shown};

/// Tries of one request, the first included. The second is for a connection that went stale; the dispatcher paces
/// the others.
const ATTEMPTS: u32 = 2;
/// Longest wait of the SDK before the second try.
const RETRY_WAIT: Duration = Duration::from_millis(100);

pub(super) async fn connect(
    endpoint: Option<&str>,
    routes: &Routes,
    source: &str,
    publish_timeout: Duration,
) -> Result<SqsPublisher, SqsError> {
    check_source(source)?;
    let urls = routes.urls();
    if urls.is_empty() {
        return Err(SqsError::NoRoutes);
    }
    let queues = urls.iter().map(|url| parse_url(url)).collect::<Result<Vec<_>, _>>()?;
    let config = load(endpoint).await;
    for (url, queue) in urls.iter().zip(queues) {
        check_region(&config, url, queue)?;
    }
    check_credentials(&config).await?;

    let client = RenewingClient::new(config, publish_timeout);
    let asking = client.get().await;
    let limits = urls.iter().map(|url| async {
        let attributes = Attributes::read(&asking, url).await?;
        if attributes.is_fifo() {
            Ok((Destination::new(url), attributes.max_bytes()))
        } else {
            Err(SqsError::StandardQueue((*url).to_owned()))
        }
    });
    let max_bytes: HashMap<_, _> = try_join_all(limits).await?.into_iter().collect();
    let targets = match routes {
        Routes::All(url) => Targets::All(Destination::new(url)),
        Routes::ByAggregateType(routes) => {
            Targets::ByAggregateType(routes.iter().map(|(kind, url)| (kind.clone(), Destination::new(url))).collect())
        }
    };
    Ok(SqsPublisher { shared: Arc::new(Shared { client, source: source.to_owned(), targets, max_bytes }) })
}

pub(super) fn check_source(source: &str) -> Result<(), SqsError> {
    if is_source(source) { Ok(()) } else { Err(SqsError::Source(source.chars().take(200).collect())) }
}

/// Region, credentials and endpoint by the AWS default chain.
pub(super) async fn load(endpoint: Option<&str>) -> SdkConfig {
    let loader = aws_config::defaults(BehaviorVersion::latest());
    match endpoint {
        Some(endpoint) => loader.endpoint_url(endpoint).load().await,
        None => loader.load().await,
    }
}

pub(super) fn parse_url(url: &str) -> Result<QueueUrl<'_>, SqsError> {
    let queue = QueueUrl::parse(url).map_err(|problem| SqsError::MalformedUrl { url: shown(url), problem })?;
    if queue.is_fifo() { Ok(queue) } else { Err(SqsError::StandardQueue(url.to_owned())) }
}

/// The SDK sends to the endpoint of the region that is configured, whatever the URL says. The region, if it fits.
pub(super) fn check_region(config: &SdkConfig, url: &str, queue: QueueUrl<'_>) -> Result<String, SqsError> {
    let configured = config.region().ok_or(SqsError::NoRegion)?.as_ref().to_owned();
    let elsewhere = config.endpoint_url().is_some() || std::env::var_os("AWS_ENDPOINT_URL_SQS").is_some();
    match queue.region() {
        Some(actual) if actual == configured => Ok(configured),
        Some(actual) => Err(SqsError::RegionMismatch { url: url.to_owned(), actual: actual.to_owned(), configured }),
        None if elsewhere => Ok(configured),
        None => Err(SqsError::RegionUnknown(url.to_owned())),
    }
}

pub(super) async fn check_credentials(config: &SdkConfig) -> Result<(), SqsError> {
    let provider = config.credentials_provider().ok_or(SqsError::NoCredentials)?;
    // the SDK's own limit is far beyond anybody's patience; the cause is not passed on: it can quote what a credential process printed
    match tokio::time::timeout(PATIENCE, provider.provide_credentials()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(SqsError::NoCredentials),
    }
}

/// A client whose requests end, tries and waits included, before the publish timeout does: so the SDK's word on what
/// went wrong arrives, and no try is left running.
pub(super) fn client(config: &SdkConfig, publish_timeout: Duration) -> Client {
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
