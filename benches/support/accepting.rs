//! A publisher that accepts everything, at once or after a while, and keeps nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ordered_outbox::outcome::Outcome;
use ordered_outbox::publisher::{Destination, Limits};
use ordered_outbox::{Message, Publisher};
use tokio_util::sync::CancellationToken;

/// What one request to SQS can carry.
pub const SQS: Limits = Limits { entries: 10, bytes: 1 << 20 };

/// Accepts after `latency`.
pub struct Accepting {
    pub latency: Duration,
    pub countdown: Countdown,
}

/// Stops dispatchers once so many messages were accepted by all of them.
#[derive(Clone)]
pub struct Countdown {
    left: Arc<AtomicU64>,
    pub stop: CancellationToken,
}

impl Countdown {
    pub fn from(messages: u64) -> Self {
        Self { left: Arc::new(AtomicU64::new(messages)), stop: CancellationToken::new() }
    }

    fn count(&self, accepted: u64) {
        let left = self.left.fetch_sub(accepted, Ordering::SeqCst);
        assert!(left >= accepted, "something was accepted twice");
        if left == accepted {
            self.stop.cancel();
        }
    }
}

impl Publisher for Accepting {
    fn destination(&self, _message: &Message) -> Option<Destination> {
        Some(Destination::new("accepting"))
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        SQS
    }

    fn size(&self, message: &Message) -> usize {
        message.size_bytes()
    }

    async fn publish(&self, _destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        if !self.latency.is_zero() {
            let latency = self.latency;
            // a timer of the runtime has ticks of a millisecond and would be late by up to one
            tokio::task::spawn_blocking(move || std::thread::sleep(latency)).await.unwrap();
        }
        self.countdown.count(messages.len() as u64);
        vec![accepted(); messages.len()]
    }
}

/// What SQS tells of an accepted message, in the sizes it has there.
pub fn accepted() -> Outcome {
    Outcome::Published {
        broker_message_id: Some("7f9c24e8-3b12-4d6a-9c1e-5a0b7d3f8e21".into()),
        broker_sequence: Some("18849496460467696128".into()),
    }
}
