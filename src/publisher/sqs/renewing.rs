//! The SDK's client, with credentials read afresh once SQS does not accept those it has.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_config::SdkConfig;
use aws_sdk_sqs::Client;
use tokio::sync::Mutex;

use super::connect::{client, load};

/// Keeps one client for all requests.
///
/// The SDK renews what expires. It reads a credentials file once and keeps what it found, and whatever else does not expire
/// for 15 minutes: keys that were replaced, or revoked before their time, would be used until somebody restarts.
pub(super) struct RenewingClient {
    config: SdkConfig,
    publish_timeout: Duration,
    client: RwLock<Client>,
    is_refused: AtomicBool,
    /// Held while credentials are read, which only one has to do.
    reading: Mutex<()>,
}

impl RenewingClient {
    pub(super) fn new(config: SdkConfig, publish_timeout: Duration) -> Self {
        let client = RwLock::new(client(&config, publish_timeout));
        Self { config, publish_timeout, client, is_refused: AtomicBool::new(false), reading: Mutex::new(()) }
    }

    /// The client to send with. Of one that was refused, the next request waits until credentials are read.
    pub(super) async fn get(&self) -> Client {
        if self.is_refused.load(Ordering::Acquire) {
            let _reading = self.reading.lock().await;
            // a request that waited for the lock finds them read
            if self.is_refused.load(Ordering::Acquire) {
                let fresh = load(self.config.endpoint_url()).await;
                let mut config = self.config.to_builder();
                config.set_credentials_provider(fresh.credentials_provider());
                let renewed = client(&config.build(), self.publish_timeout);
                *self.client.write().unwrap_or_else(std::sync::PoisonError::into_inner) = renewed;
                self.is_refused.store(false, Ordering::Release);
            }
        }
        self.client.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// SQS did not accept the credentials, or there were none.
    pub(super) fn refuse(&self) {
        self.is_refused.store(true, Ordering::Release);
    }
}
