//! The producer's side: checks a message and inserts it inside the caller's own transaction.

use sqlx::{Postgres, Transaction};

use crate::message::{MessageId, NewMessage};
use crate::sendable::{self, MAX_BYTES, check_attributes, refused_character};

/// Longest SQS message group id, in characters. Source: the SQS API reference, `SendMessageBatchRequestEntry`.
pub const MAX_AGGREGATE_ID_CHARS: usize = 128;

/// Why a message was refused before it was written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMessage {
    /// A required text is empty.
    #[error("{0} is empty: give it a name")]
    Empty(&'static str),
    /// The aggregate id is longer than SQS allows.
    #[error("aggregate_id has {0} characters: SQS takes a message group id of 1 to 128")]
    AggregateIdTooLong(usize),
    /// The aggregate id has a character that SQS refuses.
    #[error("aggregate_id holds {0:?}: SQS takes ASCII letters, digits and punctuation, and no space")]
    AggregateIdCharacter(char),
    /// The payload is not JSON.
    #[error("payload is not JSON ({0}): give one JSON value")]
    PayloadNotJson(String),
    /// PostgreSQL's `jsonb` cannot hold this JSON.
    #[error("{0} holds \\u0000, which PostgreSQL cannot store: leave it out")]
    NulCharacter(&'static str),
    /// The payload has a character that SQS refuses, as such or as an escape that PostgreSQL stores as such.
    #[error("payload holds {0:?}: SQS takes no such character")]
    PayloadCharacter(char),
    /// More headers than SQS takes.
    #[error("{0} headers: SQS takes {MAX_ATTRIBUTES} attributes, and 3 are the outbox's own", MAX_ATTRIBUTES = sendable::MAX_ATTRIBUTES)]
    TooManyHeaders(usize),
    /// SQS takes no attribute of that name.
    #[error("header name {name:?} {problem}")]
    HeaderName {
        /// The first 64 characters of it.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// SQS takes no empty value.
    #[error("attribute {0:?} is empty: SQS takes values of at least 1 character")]
    EmptyAttribute(String),
    /// The value has a character that SQS refuses.
    #[error("attribute {name:?} holds {character:?}: SQS takes no such character")]
    AttributeCharacter {
        /// Of the header; or `event-type` or `aggregate-type`.
        name: String,
        /// The first such character.
        character: char,
    },
    /// No queue takes as much. A queue may take less; that is found before the message is sent.
    #[error("at least {size} bytes with attributes: SQS takes {MAX_BYTES}; store it elsewhere and send where it is")]
    TooLarge {
        /// At least so many bytes.
        size: usize,
    },
}

/// An enqueue wrote nothing. The caller's transaction is still theirs to roll back.
#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    /// A message is not fit to be written; nothing reached the database.
    #[error("message {index} of this call: {source}")]
    Invalid {
        /// Its place in the call, from 0.
        index: usize,
        /// What is wrong with it.
        source: InvalidMessage,
    },
    /// The database refused; the transaction is aborted.
    #[error("insert into outbox: {0}")]
    Insert(#[source] sqlx::Error),
}

impl NewMessage {
    /// Checks what would otherwise fail later, at the database or at the broker.
    ///
    /// # Errors
    /// The first thing found wrong.
    pub fn validate(&self) -> Result<(), InvalidMessage> {
        for (name, text) in [
            ("aggregate_type", &self.aggregate_type),
            ("aggregate_id", &self.aggregate_id),
            ("event_type", &self.event_type),
        ] {
            if text.is_empty() {
                return Err(InvalidMessage::Empty(name));
            }
            if text.contains('\0') {
                return Err(InvalidMessage::NulCharacter(name));
            }
        }
        check_aggregate_id(&self.aggregate_id)?;
        serde_json::from_str::<serde::de::IgnoredAny>(&self.payload)
            .map_err(|error| InvalidMessage::PayloadNotJson(error.to_string()))?;
        if has_nul_escape(&self.payload) {
            return Err(InvalidMessage::NulCharacter("payload"));
        }
        if self.headers.iter().any(|(name, value)| name.contains('\0') || value.contains('\0')) {
            return Err(InvalidMessage::NulCharacter("headers"));
        }
        if let Some(character) = refused_in_json(&self.payload) {
            return Err(InvalidMessage::PayloadCharacter(character));
        }
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        check_attributes(&self.event_type, &self.aggregate_type, headers.clone())?;
        let size = least_size(&self.payload) + headers.map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if size > MAX_BYTES { Err(InvalidMessage::TooLarge { size }) } else { Ok(()) }
    }
}

/// Whether `aggregate_id` can be an SQS message group id: 1-128 ASCII letters, digits and punctuation.
///
/// # Errors
/// Too long, empty, or the first character that does not fit.
pub fn check_aggregate_id(aggregate_id: &str) -> Result<(), InvalidMessage> {
    if aggregate_id.is_empty() {
        return Err(InvalidMessage::Empty("aggregate_id"));
    }
    if let Some(bad) = aggregate_id.chars().find(|c| !c.is_ascii_graphic()) {
        return Err(InvalidMessage::AggregateIdCharacter(bad));
    }
    if aggregate_id.len() > MAX_AGGREGATE_ID_CHARS {
        return Err(InvalidMessage::AggregateIdTooLong(aggregate_id.len()));
    }
    Ok(())
}

/// Whether JSON text has the escape `\u0000`: legal JSON, refused by `jsonb`.
fn has_nul_escape(json: &str) -> bool {
    escapes(json).any(|code| code == 0)
}

/// The first character that the text of the `jsonb` value will hold and SQS refuses. Control characters stay escapes
/// there; of all others only U+FFFE and U+FFFF are none of XML 1.0.
fn refused_in_json(json: &str) -> Option<char> {
    let escaped = || escapes(json).find(|code| matches!(code, 0xFFFE | 0xFFFF)).and_then(char::from_u32);
    refused_character(json).map(|(_, character)| character).or_else(escaped)
}

/// The codes of the `\uXXXX` escapes in JSON text.
fn escapes(json: &str) -> impl Iterator<Item = u32> + '_ {
    let bytes = json.as_bytes();
    let mut escaped = false;
    bytes.iter().enumerate().filter_map(move |(at, byte)| {
        let is_code = escaped && *byte == b'u';
        escaped = *byte == b'\\' && !escaped;
        let digits = is_code.then(|| json.get(at + 1..at + 5)).flatten()?;
        u32::from_str_radix(digits, 16).ok()
    })
}

/// The fewest bytes that the text of this `jsonb` value can have: never more than it has, so that nothing is refused
/// that would fit. PostgreSQL drops white space and all but the last of equal keys, and writes numbers in its own way.
fn least_size(json: &str) -> usize {
    // it adds at most a space to each comma and colon
    if json.len() <= MAX_BYTES / 2 {
        return 0;
    }
    serde_json::from_str(json).map_or(0, |value| least_size_of(&value))
}

fn least_size_of(value: &serde_json::Value) -> usize {
    use serde_json::Value::{Array, Bool, Null, Number, Object, String};
    let between = |members: usize| 2 * members.saturating_sub(1);
    match value {
        Null | Bool(true) => 4,
        Bool(false) => 5,
        Number(_) => 1,
        String(text) => text_size(text),
        Array(items) => 2 + between(items.len()) + items.iter().map(least_size_of).sum::<usize>(),
        Object(members) => {
            let sizes = members.iter().map(|(name, value)| text_size(name) + 2 + least_size_of(value));
            2 + between(members.len()) + sizes.sum::<usize>()
        }
    }
}

/// With quotes and escapes, which PostgreSQL writes as everybody does.
fn text_size(text: &str) -> usize {
    let escapes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | 0x08 | 0x09 | 0x0A | 0x0C | 0x0D => 1,
        0x00..=0x1F => 5,
        _ => 0,
    });
    2 + text.len() + escapes.sum::<usize>()
}

/// Writes one message in the caller's transaction. It is delivered if, and only if, that transaction commits.
///
/// Take the aggregate's row lock before (`SELECT ... FOR UPDATE`): ids are drawn at insert, so two transactions that
/// write for one aggregate at the same time could otherwise commit against id order.
///
/// # Errors
/// The message is not fit ([`EnqueueError::Invalid`], nothing was sent to the database), or the insert failed.
pub async fn enqueue(tx: &mut Transaction<'_, Postgres>, message: &NewMessage) -> Result<MessageId, EnqueueError> {
    let ids = enqueue_many(tx, std::slice::from_ref(message)).await?;
    ids.first().copied().ok_or(EnqueueError::Insert(sqlx::Error::RowNotFound))
}

/// Writes messages with one statement in the caller's transaction; their ids rise in the order given.
///
/// # Errors
/// As [`enqueue`]; all messages or none are written.
pub async fn enqueue_many(
    tx: &mut Transaction<'_, Postgres>,
    messages: &[NewMessage],
) -> Result<Vec<MessageId>, EnqueueError> {
    let mut headers = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        message.validate().map_err(|source| EnqueueError::Invalid { index, source })?;
        headers.push(serde_json::json!(message.headers).to_string());
    }
    let column = |text: fn(&NewMessage) -> &String| messages.iter().map(text).cloned().collect::<Vec<_>>();
    let mut ids = sqlx::query_file_scalar!(
        "src/store/sql/enqueue.sql",
        &column(|m| &m.aggregate_type),
        &column(|m| &m.aggregate_id),
        &column(|m| &m.event_type),
        &column(|m| &m.payload),
        &headers
    )
    .fetch_all(&mut **tx)
    .await
    .map_err(EnqueueError::Insert)?;
    // RETURNING has no order of its own; the identity was drawn in the order given
    ids.sort_unstable();
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_payload(payload: &str) -> Result<(), InvalidMessage> {
        NewMessage::from_json("order", "order-1", "OrderPlaced", payload).validate()
    }

    // C18
    #[test]
    fn an_aggregate_id_that_sqs_would_refuse_is_refused() {
        let check = |id: &str| NewMessage::from_json("order", id, "OrderPlaced", "{}").validate();
        assert_eq!(check(&"a".repeat(128)), Ok(()));
        assert_eq!(check("order-42!~\"#"), Ok(()));
        assert_eq!(check(&"a".repeat(129)), Err(InvalidMessage::AggregateIdTooLong(129)));
        assert_eq!(check(&"a".repeat(400)), Err(InvalidMessage::AggregateIdTooLong(400)));
        assert_eq!(check("order 42"), Err(InvalidMessage::AggregateIdCharacter(' ')));
        assert_eq!(check("order-🎁"), Err(InvalidMessage::AggregateIdCharacter('🎁')));
        assert_eq!(check(""), Err(InvalidMessage::Empty("aggregate_id")));
    }

    #[test]
    fn a_payload_must_be_one_json_value() {
        for good in ["{}", "null", "[1e400]", " {\"a\" : 9007199254740993} ", "\"text\""] {
            assert_eq!(with_payload(good), Ok(()), "{good}");
        }
        for bad in ["", "{", "{} {}", "nope", "{\"a\":}"] {
            assert!(matches!(with_payload(bad), Err(InvalidMessage::PayloadNotJson(_))), "{bad}");
        }
    }

    // C34
    #[test]
    fn a_nul_escape_is_found_and_an_escaped_backslash_is_not_mistaken_for_one() {
        for nul in [r#""\u0000""#, r#""\\\u0000""#, r#"{"\u0000":1}"#, r#""x\n\u0000""#] {
            assert_eq!(with_payload(nul), Err(InvalidMessage::NulCharacter("payload")), "{nul}");
        }
        for fine in [r#""\\u0000""#, r#""u0000""#, r#""\\\\u0000""#, r#""\u0001""#] {
            assert_eq!(with_payload(fine), Ok(()), "{fine}");
        }
    }
}
