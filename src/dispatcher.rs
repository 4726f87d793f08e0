//! Placeholder.
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::config::{ConfigError, DispatcherConfig};
use crate::publisher::Publisher;
use crate::store::{Store, StoreError};

/// Moves committed rows of one outbox to a publisher.
#[derive(Debug)]
pub struct Dispatcher<P> {
    _publisher: P,
}

/// Why a dispatcher ended badly.
#[derive(Debug, thiserror::Error)]
pub enum DispatcherError {
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a dispatcher did, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Claimed, repeats included.
    pub claimed: u64,
    /// Confirmed by the broker.
    pub published: u64,
    /// Backed off, attempt spent.
    pub backoff: u64,
    /// Deferred, attempt refunded.
    pub deferred: u64,
    /// Declared dead.
    pub dead: u64,
    /// Handed back untried, attempt refunded.
    pub released: u64,
    /// Sent to a destination that was unavailable, attempt refunded.
    pub unavailable: u64,
    /// Left to their lease.
    pub unclassified: u64,
    /// Taken over before they could be finalized.
    pub lease_lost: u64,
}

impl<P: Publisher> Dispatcher<P> {
    /// A dispatcher that has not started.
    ///
    /// # Errors
    /// A setting is unusable.
    pub fn new(_store: Store, publisher: P, config: DispatcherConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { _publisher: publisher })
    }

    /// Dispatches until `stop` is cancelled.
    ///
    /// # Errors
    /// The grace period ended before everything in flight was finalized.
    pub async fn run(self, _stop: CancellationToken) -> Result<Summary, DispatcherError> {
        Ok(Summary::default())
    }

    /// Dispatches until nothing due is left, or `stop` is cancelled.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn drain(self, _stop: CancellationToken) -> Result<Summary, DispatcherError> {
        Ok(Summary::default())
    }
}
