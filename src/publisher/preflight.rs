//! What SQS would refuse, found before a request is spent on it. Pure.
//!
//! The rules are in `crate::sendable`, which the producer's side follows as well; what gets here in spite of it was
//! inserted by hand, or does not fit into this very queue.

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

use crate::enqueue::{InvalidMessage, check_aggregate_id};
use crate::message::Message;
use crate::sendable::{AGGREGATE_TYPE, EVENT_TYPE, OUTBOX_ID, check_attributes, refused_character};

/// Longest deduplication id: the source, a hyphen and the row id.
const MAX_DEDUPLICATION_ID_BYTES: usize = 128;
const MAX_ROW_ID_BYTES: usize = 20;
/// Longest source name.
pub(crate) const MAX_SOURCE_BYTES: usize = MAX_DEDUPLICATION_ID_BYTES - 1 - MAX_ROW_ID_BYTES;

const NUMBER: usize = "Number".len();
const STRING: usize = "String".len();

/// Why SQS can never accept a message.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unsendable {
    #[error("{0}")]
    Invalid(#[from] InvalidMessage),
    #[error("payload is empty: SQS takes a body of at least 1 character")]
    EmptyBody,
    #[error("payload holds {character:?} at byte {at}: SQS takes no such character")]
    BodyCharacter { character: char, at: usize },
    #[error("headers are not a JSON object")]
    Headers,
    #[error("{size} bytes with attributes: the queue takes {limit}")]
    TooLarge { size: usize, limit: usize },
}

/// The headers of a message that SQS can accept.
pub(crate) fn check(message: &Message, limit: usize) -> Result<Vec<(String, String)>, Unsendable> {
    check_aggregate_id(&message.aggregate_id)?;
    // first of what is costly: a huge payload is not worth reading to its end
    let size = size(message);
    if size > limit {
        return Err(Unsendable::TooLarge { size, limit });
    }
    if message.payload.is_empty() {
        return Err(Unsendable::EmptyBody);
    }
    if let Some((at, character)) = refused_character(&message.payload) {
        return Err(Unsendable::BodyCharacter { character, at });
    }
    let headers = message.headers().map_err(|_| Unsendable::Headers)?;
    let texts = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    check_attributes(&message.event_type, &message.aggregate_type, texts)?;
    Ok(headers)
}

/// The bytes a message adds to a request: body, and names, types and values of its attributes, in UTF-8.
pub(crate) fn size(message: &Message) -> usize {
    let ours = OUTBOX_ID.len()
        + NUMBER
        + decimals(message.id)
        + EVENT_TYPE.len()
        + STRING
        + message.event_type.len()
        + AGGREGATE_TYPE.len()
        + STRING
        + message.aggregate_type.len();
    message.payload.len() + ours + headers_size(&message.headers_json)
}

/// Whether a source name can stand in front of a row id in a deduplication id.
pub(crate) fn is_source(source: &str) -> bool {
    (1..=MAX_SOURCE_BYTES).contains(&source.len()) && source.bytes().all(|b| b.is_ascii_graphic())
}

fn decimals(id: i64) -> usize {
    let digits = id.unsigned_abs().checked_ilog10().map_or(1, |log| log as usize + 1);
    digits + usize::from(id < 0)
}

/// [`size`] is asked for once a message, also where nothing will be sent: it walks the JSON text and copies nothing
/// that has no escapes in it.
fn headers_size(json: &str) -> usize {
    if json == "{}" {
        return 0;
    }
    serde_json::Deserializer::from_str(json).deserialize_map(SizeOfHeaders).unwrap_or(json.len())
}

struct SizeOfHeaders;

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for SizeOfHeaders {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
        let mut size = 0;
        while let Some((name, value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
            let text = serde_json::from_str::<Text<'de>>(value.get());
            size += name.0.len() + STRING + text.map_or(value.get().len(), |text| text.0.len());
        }
        Ok(size)
    }
}

#[cfg(test)]
#[path = "preflight_tests.rs"]
mod tests;
