//! What a reply says of each entry of its request. Pure.
//!
//! HTTP 200 says nothing: entries fail one by one. Believed is what is said of an entry by name, once.

use std::collections::HashMap;

use super::classify::{Fault, entry_fault};
use crate::outcome::{Outcome, Trouble};

/// What a reply says of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// It is in the queue.
    Accepted {
        /// The queue's id of the message.
        message_id: String,
        /// Its place in the queue.
        sequence: Option<String>,
    },
    /// It is not.
    Refused {
        /// Error code.
        code: String,
        /// Whether SQS blames the sender.
        sender_fault: bool,
        /// For people.
        message: Option<String>,
    },
}

/// The outcomes of a request whose entries were named `ids`, in that order.
///
/// Where not one entry was accepted, trouble that could be the message's or the destination's counts as the
/// destination's: an outage must spend no attempts (P7).
pub(crate) fn outcomes(ids: &[String], words: Vec<(String, Word)>) -> Vec<Outcome> {
    let mut by_id: HashMap<String, Vec<Word>> = HashMap::new();
    let mut unknown = 0usize;
    for (id, word) in words {
        if ids.contains(&id) {
            by_id.entry(id).or_default().push(word);
        } else {
            unknown += 1;
        }
    }
    if unknown > 0 {
        tracing::warn!(unknown, "SQS replied to entries that were not sent");
    }
    let judged: Vec<_> = ids.iter().map(|id| judge(by_id.remove(id).unwrap_or_default())).collect();
    let some_accepted = judged.iter().any(|judged| matches!(judged, Ok(Outcome::Published { .. })));
    judged
        .into_iter()
        .map(|judged| match judged {
            Ok(outcome) => outcome,
            Err(Either { error }) if some_accepted => Outcome::Backoff { error },
            Err(Either { error }) => Outcome::Unavailable { trouble: Trouble::Internal, error },
        })
        .collect()
}

/// Trouble that could be the message's or the destination's.
struct Either {
    error: String,
}

fn judge(words: Vec<Word>) -> Result<Outcome, Either> {
    let unconfirmed = |what: &str| {
        Err(Either { error: format!("{what}: it may be in the queue, and goes again under the same deduplication id") })
    };
    let mut words = words.into_iter();
    match (words.next(), words.next()) {
        (None, _) => unconfirmed("SQS replied without a word on this message"),
        (Some(_), Some(_)) => unconfirmed("SQS replied more than once on this message"),
        (Some(Word::Accepted { message_id, sequence }), None) => {
            Ok(Outcome::Published { broker_message_id: Some(message_id), broker_sequence: sequence })
        }
        (Some(Word::Refused { code, sender_fault, message }), None) => {
            let error = describe("SQS refused this message", Some(&code), message.as_deref());
            Ok(match entry_fault(&code, sender_fault) {
                Fault::Message => Outcome::Permanent { error },
                Fault::Passing => Outcome::Backoff { error },
                Fault::Destination(trouble) => Outcome::Unavailable { trouble, error },
                Fault::Either => return Err(Either { error }),
                Fault::Unknown => Outcome::Unclassified { error },
            })
        }
    }
}

/// Longest text of SQS's own kept in an error, in characters.
const MAX_TEXT: usize = 200;

/// One line: the step, the code, the first of what SQS says.
pub(crate) fn describe(step: &str, code: Option<&str>, message: Option<&str>) -> String {
    let short = |text: &str| text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TEXT).collect();
    [Some(step.to_owned()), code.map(short), message.map(short)]
        .into_iter()
        .flatten()
        .filter(|part: &String| !part.is_empty())
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(id: &str) -> (String, Word) {
        (id.into(), Word::Accepted { message_id: format!("m{id}"), sequence: Some(format!("s{id}")) })
    }

    fn refused(id: &str, code: &str, sender_fault: bool) -> (String, Word) {
        (id.into(), Word::Refused { code: code.into(), sender_fault, message: Some("text".into()) })
    }

    fn classes(ids: &[&str], words: Vec<(String, Word)>) -> Vec<&'static str> {
        let ids: Vec<_> = ids.iter().map(|id| (*id).to_owned()).collect();
        outcomes(&ids, words).iter().map(Outcome::class).collect()
    }

    // C11
    #[test]
    fn only_an_entry_confirmed_by_name_is_published() {
        let words = vec![accepted("7"), refused("1", "InternalError", false), accepted("0")];
        assert_eq!(classes(&["0", "1", "2"], words), ["published", "backoff", "backoff"]);
    }

    #[test]
    fn outcomes_come_in_the_order_of_the_request_with_the_words_of_their_own_entry() {
        let ids = ["0".to_owned(), "1".to_owned()];
        let published = |id: &str| Outcome::Published {
            broker_message_id: Some(format!("m{id}")),
            broker_sequence: Some(format!("s{id}")),
        };
        assert_eq!(outcomes(&ids, vec![accepted("1"), accepted("0")]), [published("0"), published("1")]);
    }

    #[test]
    fn an_entry_named_twice_is_not_believed() {
        assert_eq!(
            classes(&["0", "1", "2"], vec![accepted("0"), accepted("1"), accepted("1"), accepted("2")]),
            ["published", "backoff", "published"]
        );
        let contradiction = vec![accepted("0"), accepted("1"), refused("1", "InvalidMessageContents", true)];
        assert_eq!(classes(&["0", "1"], contradiction), ["published", "backoff"]);
    }

    #[test]
    fn each_refusal_is_classed_by_itself() {
        let words = vec![
            accepted("0"),
            refused("1", "InvalidMessageContents", true),
            refused("2", "RequestThrottled", true),
            refused("3", "InternalError", false),
            refused("4", "NeverHeardOf", true),
        ];
        assert_eq!(
            classes(&["0", "1", "2", "3", "4"], words),
            ["published", "permanent", "unavailable", "backoff", "unclassified"]
        );
    }

    // P7
    #[test]
    fn where_nothing_was_accepted_an_internal_error_is_an_outage_and_bad_content_is_still_bad() {
        let words = vec![refused("0", "InternalError", false), refused("1", "InvalidMessageContents", true)];
        assert_eq!(classes(&["0", "1", "2"], words), ["unavailable", "permanent", "unavailable"]);
        assert_eq!(classes(&["0", "1"], vec![]), ["unavailable", "unavailable"]);
    }

    // P2 P3: it must not hold its queue up for ever, and no aggregate either
    #[test]
    fn a_message_refused_for_its_content_by_a_fault_of_sqs_spends_its_attempts_even_alone() {
        assert_eq!(classes(&["0"], vec![refused("0", "InvalidMessageContents", false)]), ["backoff"]);
    }

    #[test]
    fn an_error_text_is_one_short_line() {
        let long = "x\n".repeat(1_000);
        let text = describe("step", Some("Code"), Some(&long));
        assert!(text.starts_with("step: Code: x x x"), "{text}");
        assert!(text.len() < 250 && !text.contains('\n'), "{text}");
        assert_eq!(describe("step", None, Some(" ")), "step");
    }
}
