//! The port to a broker: one outcome a message, and no error that escapes classification.

use std::fmt;
use std::sync::Arc;

use crate::message::Message;
use crate::outcome::Outcome;

pub mod batch;
mod classify;
mod preflight;
mod queue_url;
pub mod recording;
mod reply;
pub mod sqs;

pub use batch::Limits;
pub use recording::RecordingPublisher;
pub use sqs::SqsPublisher;

/// Where messages go, for example an SQS queue URL. Requests never mix destinations.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination(Arc<str>);

impl Destination {
    /// A destination by its name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What metrics name it: the part after the last slash, which of an SQS queue URL is the queue's name, without host and
    /// account.
    #[must_use]
    pub fn label(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A broker, as the dispatcher sees it.
///
/// The dispatcher never has two requests in flight that hold messages of one aggregate. Strictly (the default), a
/// request holds at most one message of an aggregate, so a partial failure cannot reorder. With group batching it holds
/// up to [`group_batching`](crate::DispatcherConfig::group_batching) of them: consecutive, side by side, in order.
pub trait Publisher: Send + Sync + 'static {
    /// Where this message goes: always the same for the same aggregate type. `None`: there is no route for it, which
    /// counts as an outage of its destination.
    fn destination(&self, message: &Message) -> Option<Destination>;

    /// The aggregate types that go to this destination; `None`, unless overridden: all of them. While the destination is
    /// down, nothing of these is claimed.
    fn aggregate_types(&self, _destination: &Destination) -> Option<Vec<String>> {
        None
    }

    /// What one request to this destination can carry.
    fn limits(&self, destination: &Destination) -> Limits;

    /// The bytes this message adds to a request.
    fn size(&self, message: &Message) -> usize;

    /// Sends messages in one request and tells what became of each: exactly one outcome a message, in the order given.
    ///
    /// Messages of one aggregate are side by side in `messages`, and have to be offered to the broker in that order. A
    /// publisher that finds out that one of them cannot go sends none behind it that it can still hold back, and says
    /// [`Untried`](Outcome::Untried) of those. A later one that the broker accepted although an earlier one failed is
    /// `Published` all the same: the dispatcher tells people about the gap.
    ///
    /// Every failure is an [`Outcome`]. A message the broker did not confirm by name is not
    /// [`Published`](Outcome::Published). The same message always carries the same deduplication id (P9). A panic
    /// counts as [`Unclassified`](Outcome::Unclassified) for every message of the request. The future is dropped when
    /// the publish timeout ends.
    fn publish(&self, destination: &Destination, messages: &[Message]) -> impl Future<Output = Vec<Outcome>> + Send;
}
