//! What SQS takes in a body and in attributes: one set of rules for the producer's side and for the last look before a
//! send. Pure.
//!
//! Source: the SQS API reference, `SendMessageBatchRequestEntry`, and the developer guide, "Message quotas" and "Message
//! metadata".

use crate::enqueue::InvalidMessage;

/// Attribute that holds the row id.
pub(crate) const OUTBOX_ID: &str = "outbox-id";
/// Attribute that holds the event type.
pub(crate) const EVENT_TYPE: &str = "event-type";
/// Attribute that holds the aggregate type.
pub(crate) const AGGREGATE_TYPE: &str = "aggregate-type";

/// Most attributes of a message, ours included.
pub(crate) const MAX_ATTRIBUTES: usize = 10;
/// Most headers: what our own three attributes leave.
const MAX_HEADERS: usize = MAX_ATTRIBUTES - 3;
const MAX_NAME_BYTES: usize = 256;

/// Most bytes of a `SendMessageBatch` request, and of a message in a queue that sets no lower limit; attributes count.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// The first character that SQS refuses, and where: it takes those of XML 1.0.
pub(crate) fn refused_character(text: &str) -> Option<(usize, char)> {
    text.char_indices().find(|(_, c)| !is_sendable(*c))
}

fn is_sendable(c: char) -> bool {
    matches!(c, '\u{9}' | '\u{A}' | '\u{D}' | '\u{20}'..='\u{D7FF}' | '\u{E000}'..='\u{FFFD}' | '\u{10000}'..)
}

/// Whether the attributes of a message can be sent.
///
/// # Errors
/// The first thing that SQS would refuse.
pub(crate) fn check_attributes<'a>(
    event_type: &str,
    aggregate_type: &str,
    headers: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
) -> Result<(), InvalidMessage> {
    if headers.len() > MAX_HEADERS {
        return Err(InvalidMessage::TooManyHeaders(headers.len()));
    }
    check_value(EVENT_TYPE, event_type)?;
    check_value(AGGREGATE_TYPE, aggregate_type)?;
    for (name, value) in headers {
        if let Some(problem) = name_problem(name) {
            // a name of any length could be in there; an error text has room for the start of it
            return Err(InvalidMessage::HeaderName { name: name.chars().take(64).collect(), problem });
        }
        check_value(name, value)?;
    }
    Ok(())
}

fn check_value(name: &str, value: &str) -> Result<(), InvalidMessage> {
    if value.is_empty() {
        return Err(InvalidMessage::EmptyAttribute(name.to_owned()));
    }
    match refused_character(value) {
        Some((_, character)) => Err(InvalidMessage::AttributeCharacter { name: name.to_owned(), character }),
        None => Ok(()),
    }
}

/// Why this cannot be the name of a header.
fn name_problem(name: &str) -> Option<&'static str> {
    let begins = |reserved: &str| name.get(..reserved.len()).is_some_and(|head| head.eq_ignore_ascii_case(reserved));
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
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
