//! A message: one row of the outbox, before it is written and after it was claimed.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;

/// The identity of a message: its row id. Ids rise within an aggregate, so a consumer can deduplicate by the highest
/// id it has applied.
pub type MessageId = i64;

/// A message a producer wants delivered. [`enqueue`](fn@crate::enqueue) checks it and writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// Kind of aggregate, for example `order`; routes the message to a queue. Not empty.
    pub aggregate_type: String,
    /// Order key and SQS message group id, unique across aggregate types, for example `order-42`. 1-128 ASCII
    /// letters, digits and punctuation.
    pub aggregate_id: String,
    /// What happened, for example `OrderPlaced`. Not empty.
    pub event_type: String,
    /// The body: JSON text. PostgreSQL stores it as `jsonb`, which changes spacing and key order, and no digit.
    pub payload: String,
    /// Message attributes by name, for example a trace context. Default: none.
    pub headers: BTreeMap<String, String>,
}

impl NewMessage {
    /// A message whose body is `payload`, a JSON text. Nothing is checked before [`enqueue`](fn@crate::enqueue).
    pub fn from_json(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
        payload: impl Into<String>,
    ) -> Self {
        Self {
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.into(),
            event_type: event_type.into(),
            payload: payload.into(),
            headers: BTreeMap::new(),
        }
    }

    /// A message whose body is `payload`, serialized to JSON.
    ///
    /// # Errors
    /// The value's own `Serialize` failed, or it has a map whose keys are not strings.
    pub fn new(
        aggregate_type: impl Into<String>,
        aggregate_id: impl Into<String>,
        event_type: impl Into<String>,
        payload: &impl Serialize,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self::from_json(aggregate_type, aggregate_id, event_type, serde_json::to_string(payload)?))
    }

    /// Adds one message attribute; a second one of the same name replaces the first.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }
}

/// A claimed message: what a [`Publisher`](crate::Publisher) sends, and the lease under which it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Identity, and order within the aggregate.
    pub id: MessageId,
    /// Fencing token of this claim; a finalize names it.
    pub lease_version: i64,
    /// Attempts spent, this one included: 1 at the first try.
    pub attempts: i32,
    /// Kind of aggregate.
    pub aggregate_type: String,
    /// Order key and message group id.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// The body, exactly the text PostgreSQL holds.
    pub payload: String,
    /// The headers as JSON text; see [`Message::headers`].
    pub headers_json: String,
    /// Time since an earlier claim first took it to be sent, by the database clock, when the message was claimed. `None`:
    /// this claim is the first.
    pub first_tried: Option<Duration>,
    /// Time since the producer's transaction began, by the database clock, when the message was claimed.
    pub age: Duration,
}

impl Message {
    /// Bytes of payload and headers, as the column `size_bytes` counts them.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        self.payload.len() + self.headers_json.len()
    }

    /// The headers in name order. A value that is not a JSON string (a raw INSERT can hold any) is given as its JSON
    /// text.
    ///
    /// # Errors
    /// The column does not hold a JSON object, which its CHECK constraint rules out.
    pub fn headers(&self) -> Result<Vec<(String, String)>, serde_json::Error> {
        let raw: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&self.headers_json)?;
        Ok(raw
            .into_iter()
            .map(|(name, value)| {
                let text = serde_json::from_str::<String>(value.get()).unwrap_or_else(|_| value.get().to_owned());
                (name, text)
            })
            .collect())
    }
}

/// Where a row stands in the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Waits to be claimed.
    Pending,
    /// Claimed under a lease.
    Processing,
    /// Accepted by the broker, or skipped by a person.
    Done,
    /// Needs a person; gates its aggregate.
    Dead,
}

impl Status {
    /// The column's text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Done => "done",
            Self::Dead => "dead",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A status text that this version does not know.
#[derive(Debug, thiserror::Error)]
#[error("unknown status `{0}`")]
pub struct UnknownStatus(String);

impl FromStr for Status {
    type Err = UnknownStatus;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Pending, Self::Processing, Self::Done, Self::Dead]
            .into_iter()
            .find(|status| status.as_str() == text)
            .ok_or_else(|| UnknownStatus(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_headers(headers_json: &str) -> Message {
        Message {
            id: 1,
            lease_version: 1,
            attempts: 1,
            aggregate_type: "order".into(),
            aggregate_id: "order-1".into(),
            event_type: "OrderPlaced".into(),
            payload: "{}".into(),
            headers_json: headers_json.into(),
            first_tried: None,
            age: Duration::ZERO,
        }
    }

    #[test]
    fn header_values_keep_every_digit() {
        let headers = with_headers(r#"{"trace":"a\"b","n":9007199254740993,"o":{"x":1e400}}"#).headers().unwrap();
        assert_eq!(
            headers,
            [("n", "9007199254740993"), ("o", r#"{"x":1e400}"#), ("trace", "a\"b")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn a_status_survives_the_round_trip_and_an_unknown_one_is_an_error() {
        for status in [Status::Pending, Status::Processing, Status::Done, Status::Dead] {
            assert_eq!(status.as_str().parse::<Status>().unwrap(), status);
        }
        assert_eq!("failed".parse::<Status>().unwrap_err().to_string(), "unknown status `failed`");
    }
}
