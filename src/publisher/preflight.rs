//! What SQS would refuse, found before a request is spent on it. Pure.
//!
//! Limits: the SQS API reference, `SendMessageBatchRequestEntry`, and the developer guide, "Message quotas" and
//! "Message metadata".

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

use crate::enqueue::{InvalidMessage, check_aggregate_id};
use crate::message::Message;

/// Attribute that holds the row id.
pub(crate) const OUTBOX_ID: &str = "outbox-id";
/// Attribute that holds the event type.
pub(crate) const EVENT_TYPE: &str = "event-type";
/// Attribute that holds the aggregate type.
pub(crate) const AGGREGATE_TYPE: &str = "aggregate-type";

/// Most attributes of a message, ours included.
const MAX_ATTRIBUTES: usize = 10;
const MAX_ATTRIBUTE_NAME_BYTES: usize = 256;
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
    AggregateId(#[from] InvalidMessage),
    #[error("payload is empty: SQS takes a body of at least 1 character")]
    EmptyBody,
    #[error("payload holds {character:?} at byte {at}: SQS takes no such character")]
    BodyCharacter { character: char, at: usize },
    #[error("headers are not a JSON object")]
    Headers,
    #[error("{0} headers: SQS takes {MAX_ATTRIBUTES} attributes, and 3 are the outbox's own")]
    TooManyAttributes(usize),
    #[error("header name {name:?} {problem}")]
    HeaderName { name: String, problem: &'static str },
    #[error("attribute {0:?} is empty: SQS takes values of at least 1 character")]
    EmptyAttribute(String),
    #[error("attribute {name:?} holds {character:?}: SQS takes no such character")]
    AttributeCharacter { name: String, character: char },
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
    if let Some((at, character)) = message.payload.char_indices().find(|(_, c)| !is_sendable(*c)) {
        return Err(Unsendable::BodyCharacter { character, at });
    }
    let headers = message.headers().map_err(|_| Unsendable::Headers)?;
    if headers.len() + 3 > MAX_ATTRIBUTES {
        return Err(Unsendable::TooManyAttributes(headers.len()));
    }
    check_value(EVENT_TYPE, &message.event_type)?;
    check_value(AGGREGATE_TYPE, &message.aggregate_type)?;
    for (name, value) in &headers {
        if let Some(problem) = name_problem(name) {
            // a name of any length could be in there; an error text has room for the start of it
            return Err(Unsendable::HeaderName { name: name.chars().take(64).collect(), problem });
        }
        check_value(name, value)?;
    }
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

/// The characters of XML 1.0.
fn is_sendable(c: char) -> bool {
    matches!(c, '\u{9}' | '\u{A}' | '\u{D}' | '\u{20}'..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..)
}

fn check_value(name: &str, value: &str) -> Result<(), Unsendable> {
    if value.is_empty() {
        return Err(Unsendable::EmptyAttribute(name.to_owned()));
    }
    match value.chars().find(|c| !is_sendable(*c)) {
        Some(character) => Err(Unsendable::AttributeCharacter { name: name.to_owned(), character }),
        None => Ok(()),
    }
}

fn name_problem(name: &str) -> Option<&'static str> {
    let begins = |reserved: &str| name.get(..reserved.len()).is_some_and(|head| head.eq_ignore_ascii_case(reserved));
    if name.is_empty() || name.len() > MAX_ATTRIBUTE_NAME_BYTES {
        Some("does not have 1 to 256 characters")
    } else if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.')) {
        Some("holds another character than letters, digits, underscore, hyphen and dot")
    } else if begins("AWS.") || begins("Amazon.") {
        Some("begins with a name that AWS reserves")
    } else if name.starts_with('.') || name.ends_with('.') || name.contains("..") {
        Some("begins or ends with a dot, or has two in a row")
    } else if [OUTBOX_ID, EVENT_TYPE, AGGREGATE_TYPE].contains(&name) {
        Some("is an attribute of the outbox's own")
    } else {
        None
    }
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
