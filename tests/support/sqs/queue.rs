//! A FIFO queue: order by sequence number, copies dropped for five minutes, groups locked while one of them is received.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};
use serde_json::{Map, Value, json};

use super::md5;

/// For how long a copy is recognized. Source: the SQS developer guide, "Using the message deduplication ID".
const DEDUPLICATION_WINDOW: Duration = Duration::from_mins(5);
/// After which a message that was received and not deleted can be received again.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(30);

/// An entry of a request, as far as a queue cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name within the request.
    pub id: String,
    /// Message group id.
    pub group: String,
    /// Message deduplication id.
    pub deduplication_id: String,
    /// Body.
    pub body: String,
    /// Attributes by name, as they came.
    pub attributes: Map<String, Value>,
}

impl Entry {
    /// The row id in its attributes.
    pub fn outbox_id(&self) -> i64 {
        self.attributes["outbox-id"]["StringValue"].as_str().unwrap().parse().unwrap()
    }

    /// Bytes that count against the limits: the body, and names, types and values of attributes.
    pub fn size(&self) -> usize {
        let text = |value: &Value| value.as_str().map_or(0, str::len);
        let attribute =
            |(name, value): (&String, &Value)| name.len() + text(&value["DataType"]) + text(&value["StringValue"]);
        self.body.len() + self.attributes.iter().map(attribute).sum::<usize>()
    }
}

/// What the queue answers to an entry it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Receipt {
    pub(super) message_id: String,
    pub(super) sequence: u64,
    /// It was there already.
    pub(super) is_copy: bool,
}

#[derive(Debug)]
struct Stored {
    entry: Entry,
    receipt: Receipt,
    received: Option<(String, Duration)>,
}

#[derive(Debug, Default)]
pub(super) struct FifoQueue {
    pub(super) attributes: BTreeMap<String, String>,
    messages: Vec<Stored>,
    /// First acceptance by what is the same within the deduplication scope.
    known: HashMap<(Option<String>, String), (Duration, Receipt)>,
    sequence: u64,
    receipts: u64,
}

impl FifoQueue {
    pub(super) fn new(attributes: BTreeMap<String, String>) -> Self {
        Self { attributes, ..Self::default() }
    }

    pub(super) fn is_fifo(&self) -> bool {
        self.attribute(&QueueAttributeName::FifoQueue) == Some("true")
    }

    pub(super) fn maximum_message_size(&self) -> usize {
        self.attribute(&QueueAttributeName::MaximumMessageSize).map_or(1 << 20, |size| size.parse().unwrap())
    }

    fn attribute(&self, name: &QueueAttributeName) -> Option<&str> {
        self.attributes.get(name.as_str()).map(String::as_str)
    }

    /// Takes an entry, or recognizes a copy: also of a message that was deleted since.
    pub(super) fn accept(&mut self, entry: &Entry, now: Duration) -> Receipt {
        let per_group = self.attribute(&QueueAttributeName::DeduplicationScope) == Some("messageGroup");
        let key = (per_group.then(|| entry.group.clone()), entry.deduplication_id.clone());
        if let Some((at, receipt)) = self.known.get(&key)
            && now < *at + DEDUPLICATION_WINDOW
        {
            return Receipt { is_copy: true, ..receipt.clone() };
        }
        self.sequence += 1;
        let message_id = format!("{:08x}-0000-4000-8000-{:012x}", rand::random::<u32>(), self.sequence);
        let receipt = Receipt { message_id, sequence: self.sequence, is_copy: false };
        self.known.insert(key, (now, receipt.clone()));
        self.messages.push(Stored { entry: entry.clone(), receipt: receipt.clone(), received: None });
        receipt
    }

    /// Up to `most` messages from the front, none of a group of which an earlier one is out.
    pub(super) fn receive(&mut self, most: usize, now: Duration) -> Vec<Value> {
        let is_out = |stored: &Stored| stored.received.as_ref().is_some_and(|(_, until)| now < *until);
        let locked: Vec<_> =
            self.messages.iter().filter(|stored| is_out(stored)).map(|stored| stored.entry.group.clone()).collect();
        let mut received = Vec::new();
        for stored in self.messages.iter_mut().filter(|stored| !locked.contains(&stored.entry.group)).take(most) {
            self.receipts += 1;
            let handle = format!("receipt-{}", self.receipts);
            stored.received = Some((handle.clone(), now + VISIBILITY_TIMEOUT));
            let Stored { entry, receipt, .. } = stored;
            received.push(json!({
                "MessageId": receipt.message_id,
                "ReceiptHandle": handle,
                "MD5OfBody": md5::of_body(&entry.body),
                "MD5OfMessageAttributes": md5::of_attributes(&entry.attributes),
                "Body": entry.body,
                "MessageAttributes": entry.attributes,
                "Attributes": {
                    MessageSystemAttributeName::MessageGroupId.as_str(): entry.group,
                    MessageSystemAttributeName::MessageDeduplicationId.as_str(): entry.deduplication_id,
                    MessageSystemAttributeName::SequenceNumber.as_str(): sequence_number(receipt.sequence),
                },
            }));
        }
        received
    }

    pub(super) fn delete(&mut self, handle: &str) {
        self.messages.retain(|stored| stored.received.as_ref().is_none_or(|(receipt, _)| receipt != handle));
    }
}

/// As long as those of SQS, which have 20 digits.
pub(super) fn sequence_number(sequence: u64) -> String {
    format!("{:020}", 18_000_000_000_000_000_000_u64 + sequence)
}
