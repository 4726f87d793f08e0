//! The publisher for Amazon SQS FIFO queues. AWS types stay in this file and the ones below it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use futures::future::join_all;

use super::classify::{Fault, request_fault};
use super::preflight;
use super::reply::{Word, outcomes};
use super::{Destination, Limits, Publisher};
use crate::check::Check;
use crate::message::Message;
use crate::outcome::{Outcome, Trouble};
use crate::sendable::{AGGREGATE_TYPE, EVENT_TYPE, MAX_BYTES, OUTBOX_ID};

mod attributes;
mod check;
mod connect;
mod error;
mod failure;
mod renewing;
mod retry;

pub use error::SqsError;
use failure::Failed;
use renewing::RenewingClient;

/// Most entries of a `SendMessageBatch` request.
const MAX_ENTRIES: usize = 10;

/// Which queue a message goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routes {
    /// Every message to one queue URL.
    All(String),
    /// Queue URL by aggregate type. A message of another type has no destination and waits.
    ByAggregateType(BTreeMap<String, String>),
}

impl Routes {
    fn urls(&self) -> Vec<&str> {
        let mut urls: Vec<_> = match self {
            Self::All(url) => vec![url.as_str()],
            Self::ByAggregateType(routes) => routes.values().map(String::as_str).collect(),
        };
        urls.sort_unstable();
        urls.dedup();
        urls
    }
}

/// Sends to SQS FIFO queues. Clones share one client.
///
/// The aggregate id is the message group id and `{source}-{row id}` the deduplication id. The body is the payload,
/// byte for byte. Attributes: `outbox-id` (Number), `event-type`, `aggregate-type`, then the headers (String).
#[derive(Clone)]
pub struct SqsPublisher {
    shared: Arc<Shared>,
}

struct Shared {
    client: RenewingClient,
    source: String,
    targets: Targets,
    /// Most bytes of a message, by queue.
    max_bytes: HashMap<Destination, usize>,
}

/// [`Routes`] whose destinations are made once: one is asked for with every message.
#[derive(Debug)]
enum Targets {
    All(Destination),
    ByAggregateType(BTreeMap<String, Destination>),
}

/// The client is left out: it knows credentials.
impl fmt::Debug for SqsPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { source, targets, .. } = &*self.shared;
        f.debug_struct("SqsPublisher").field("source", source).field("targets", targets).finish_non_exhaustive()
    }
}

impl SqsPublisher {
    /// Loads region, credentials and endpoint by the AWS default chain (`AWS_ENDPOINT_URL` included) and checks every
    /// queue.
    ///
    /// `source` names this outbox: two outboxes may feed one queue if their names differ. 1-107 ASCII letters, digits
    /// and punctuation. A request with the SDK's own retry takes less than `publish_timeout`.
    ///
    /// # Errors
    /// There is no region or no credentials, a URL is not that of a queue in this region, or a queue is missing, not
    /// FIFO or not to be read. Each error is one sentence with the remedy, and shows no credentials.
    pub async fn connect(routes: Routes, source: &str, publish_timeout: Duration) -> Result<Self, SqsError> {
        connect::connect(None, &routes, source, publish_timeout).await
    }

    /// As [`connect`](Self::connect), at this endpoint and no other: a VPC endpoint, or a stand-in for tests.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_at(
        endpoint: &str,
        routes: Routes,
        source: &str,
        publish_timeout: Duration,
    ) -> Result<Self, SqsError> {
        connect::connect(Some(endpoint), &routes, source, publish_timeout).await
    }

    /// Looks at credentials and at every queue, all of them, whatever is wrong with one; sends nothing. Over within 45 s.
    ///
    /// Whether a message may be sent is asked by a request that SQS has to refuse after it has let the caller in: one
    /// without a group id. `expected_rate` is that of the busiest queue, in messages a second.
    pub async fn checks(routes: &Routes, publish_timeout: Duration, expected_rate: Option<u32>) -> Vec<Check> {
        check::checks(None, routes, publish_timeout, expected_rate).await
    }

    /// As [`checks`](Self::checks), at this endpoint and no other.
    pub async fn checks_at(
        endpoint: &str,
        routes: &Routes,
        publish_timeout: Duration,
        expected_rate: Option<u32>,
    ) -> Vec<Check> {
        check::checks(Some(endpoint), routes, publish_timeout, expected_rate).await
    }

    /// Whether this can be the `source` of [`connect`](Self::connect).
    #[must_use]
    pub fn check_source(source: &str) -> Check {
        check::source(source)
    }

    fn max_bytes(&self, destination: &Destination) -> usize {
        self.shared.max_bytes.get(destination).copied().unwrap_or(MAX_BYTES)
    }

    /// The entry of a message, named by its place; or why SQS can never accept it.
    fn entry(&self, place: usize, message: &Message, limit: usize) -> Result<SendMessageBatchRequestEntry, Outcome> {
        let headers = preflight::check(message, limit).map_err(|unsendable| Outcome::Permanent {
            error: format!("SQS cannot take this message: {unsendable}"),
        })?;
        let mut entry = SendMessageBatchRequestEntry::builder()
            .id(place.to_string())
            .message_body(&message.payload)
            .message_group_id(&message.aggregate_id)
            .message_deduplication_id(format!("{}-{}", self.shared.source, message.id))
            .message_attributes(OUTBOX_ID, attribute("Number", message.id.to_string())?)
            .message_attributes(EVENT_TYPE, attribute("String", message.event_type.clone())?)
            .message_attributes(AGGREGATE_TYPE, attribute("String", message.aggregate_type.clone())?);
        for (name, value) in headers {
            entry = entry.message_attributes(name, attribute("String", value)?);
        }
        entry.build().map_err(|error| not_built(&error))
    }

    /// Sends entries in one request; the outcomes in their order, or why there was no reply to believe.
    async fn send(
        &self,
        destination: &Destination,
        entries: Vec<SendMessageBatchRequestEntry>,
    ) -> Result<Vec<Outcome>, Failed> {
        let ids: Vec<_> = entries.iter().map(|entry| entry.id().to_owned()).collect();
        let client = self.shared.client.get().await;
        let request = client.send_message_batch().queue_url(destination.as_str());
        let reply = request.set_entries(Some(entries)).send().await.map_err(|error| {
            let failed = Failed::of("SendMessageBatch", &error);
            if request_fault(&failed.failure) == Fault::Destination(Trouble::Credentials) {
                self.shared.client.refuse();
            }
            failed
        })?;
        let accepted = reply
            .successful
            .into_iter()
            .map(|entry| (entry.id, Word::Accepted { message_id: entry.message_id, sequence: entry.sequence_number }));
        let refused = reply.failed.into_iter().map(|entry| {
            let (code, sender_fault, message) = (entry.code, entry.sender_fault, entry.message);
            (entry.id, Word::Refused { code, sender_fault, message })
        });
        Ok(outcomes(&ids, accepted.chain(refused).collect()))
    }

    /// Sends messages of one aggregate one after the other, and none behind one that was not accepted (P2).
    async fn send_in_turn(&self, destination: &Destination, messages: Vec<&Message>, limit: usize) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(messages.len());
        for message in messages {
            let held_back = outcomes.last().is_some_and(|before| !matches!(before, Outcome::Published { .. }));
            let outcome = if held_back { Outcome::Untried } else { self.send_alone(destination, message, limit).await };
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Sends one message in a request of its own.
    async fn send_alone(&self, destination: &Destination, message: &Message, limit: usize) -> Outcome {
        let entry = match self.entry(0, message, limit) {
            Ok(entry) => entry,
            Err(outcome) => return outcome,
        };
        match self.send(destination, vec![entry]).await {
            Ok(outcomes) => outcomes.into_iter().next().unwrap_or_else(|| not_built(&"no outcome")),
            Err(failed) => failed.outcome(),
        }
    }
}

impl Publisher for SqsPublisher {
    fn destination(&self, message: &Message) -> Option<Destination> {
        match &self.shared.targets {
            Targets::All(destination) => Some(destination.clone()),
            Targets::ByAggregateType(routes) => routes.get(&message.aggregate_type).cloned(),
        }
    }

    fn aggregate_types(&self, destination: &Destination) -> Option<Vec<String>> {
        match &self.shared.targets {
            Targets::All(_) => None,
            Targets::ByAggregateType(routes) => {
                Some(routes.iter().filter(|(_, to)| *to == destination).map(|(kind, _)| kind.clone()).collect())
            }
        }
    }

    fn limits(&self, destination: &Destination) -> Limits {
        Limits { entries: MAX_ENTRIES, bytes: self.max_bytes(destination) }
    }

    fn size(&self, message: &Message) -> usize {
        preflight::size(message)
    }

    async fn publish(&self, destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        let limit = self.max_bytes(destination);
        let mut entries = Vec::with_capacity(messages.len());
        let mut sent = Vec::with_capacity(messages.len());
        // an aggregate of which a message cannot be sent: those behind it must not overtake it
        let mut held_back = HashSet::new();
        // a message that was not sent has its outcome at once; the places of the others are filled in below
        let mut outcomes: Vec<_> = messages
            .iter()
            .enumerate()
            .map(|(place, message)| match self.entry(place, message, limit) {
                _ if held_back.contains(&message.aggregate_id) => Some(Outcome::Untried),
                Ok(entry) => {
                    entries.push(entry);
                    sent.push(place);
                    None
                }
                Err(outcome) => {
                    held_back.insert(&message.aggregate_id);
                    Some(outcome)
                }
            })
            .collect();
        if !entries.is_empty() {
            let replied = match self.send(destination, entries).await {
                Ok(replied) => replied,
                // one message of several is guilty and the reply does not say which: ask for each alone, so that its
                // neighbours do not pay. Messages of one aggregate are side by side and go in turn, so this cannot reorder
                Err(failed) if sent.len() > 1 && failed.may_be_one_message() => {
                    tracing::warn!(%destination, error = failed.text, "SQS refused a whole request: sending one by one");
                    let aggregates = sent.chunk_by(|a, b| messages[*a].aggregate_id == messages[*b].aggregate_id);
                    let in_turn = aggregates.map(|places| {
                        let messages = places.iter().map(|place| &messages[*place]).collect();
                        self.send_in_turn(destination, messages, limit)
                    });
                    join_all(in_turn).await.concat()
                }
                Err(failed) => vec![failed.outcome(); sent.len()],
            };
            for (place, outcome) in sent.into_iter().zip(replied) {
                outcomes[place] = Some(outcome);
            }
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| not_built(&"no outcome"))).collect()
    }
}

impl Failed {
    fn may_be_one_message(&self) -> bool {
        matches!(request_fault(&self.failure), Fault::Message | Fault::Unknown)
    }

    /// The outcome of every message of the request.
    fn outcome(self) -> Outcome {
        let error = self.text;
        match request_fault(&self.failure) {
            Fault::Message => Outcome::Permanent { error },
            Fault::Passing => Outcome::Backoff { error },
            Fault::Destination(trouble) => Outcome::Unavailable { trouble, error },
            Fault::Either => Outcome::TimedOut { error },
            Fault::Unknown => Outcome::Unclassified { error },
        }
    }
}

fn attribute(kind: &str, value: String) -> Result<MessageAttributeValue, Outcome> {
    MessageAttributeValue::builder().data_type(kind).string_value(value).build().map_err(|error| not_built(&error))
}

/// A request we could not put together: a bug of ours, and no message is to die for it.
fn not_built(error: &dyn fmt::Display) -> Outcome {
    Outcome::Unclassified { error: format!("SendMessageBatch could not be put together: {error}") }
}
