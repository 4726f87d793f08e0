//! What a publisher says of one message, and what that means for its row. Pure: no clock, no network, no database.

use std::time::Duration;

use crate::backoff::{Backoff, jitter};
use crate::message::Message;

/// Longest error text kept on a row, in characters.
pub const MAX_ERROR_CHARS: usize = 500;

/// Longest wait before a message is offered again that its destination did not take, while the destination takes others
/// or is nowhere to be found. Where it takes none, the breaker decides when to try again.
pub const MAX_OUTAGE_WAIT: Duration = Duration::from_secs(30);

/// What a destination is troubled by. Bounded, so that it can be a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Trouble {
    /// Refused, reset, or a reply that is not the broker's.
    Network,
    /// No answer in time.
    Timeout,
    /// Too many requests: it wants fewer, not none.
    Throttled,
    /// The broker had an error of its own.
    Internal,
    /// There are no credentials, or they are not accepted.
    Credentials,
    /// The identity is known and may not do this.
    Access,
    /// The encryption key of the queue cannot be used. SQS: KMS.
    Kms,
    /// There is no such queue, or it is not one that takes messages like ours.
    Queue,
    /// What was reached is not the broker, or not as it wants to be reached.
    Endpoint,
    /// No destination is known for this aggregate type.
    Route,
}

impl Trouble {
    /// Every trouble there is.
    pub const ALL: [Self; 10] = [
        Self::Network,
        Self::Timeout,
        Self::Throttled,
        Self::Internal,
        Self::Credentials,
        Self::Access,
        Self::Kms,
        Self::Queue,
        Self::Endpoint,
        Self::Route,
    ];

    /// As metrics and logs name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Timeout => "timeout",
            Self::Throttled => "throttled",
            Self::Internal => "internal",
            Self::Credentials => "credentials",
            Self::Access => "access",
            Self::Kms => "kms",
            Self::Queue => "queue",
            Self::Endpoint => "endpoint",
            Self::Route => "route",
        }
    }
}

/// What became of one message at the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker confirmed this very message, or it is already in the state the message asks for.
    Published {
        /// The broker's id of the accepted message, if it has one.
        broker_message_id: Option<String>,
        /// The broker's sequence number of the accepted message, if it has one.
        broker_sequence: Option<String>,
    },
    /// The message's own fault, and it may pass: goes again after a backoff, attempt spent; dead after the last one.
    Backoff {
        /// What went wrong.
        error: String,
    },
    /// Not a failure: the business is not ready for it yet. Goes again after `delay`, attempt refunded; dead past the
    /// maximum age.
    Defer {
        /// How long to wait.
        delay: Duration,
        /// What it waits for.
        reason: String,
    },
    /// The message can never be accepted: dead at once, which gates its aggregate (P3).
    Permanent {
        /// What went wrong.
        error: String,
    },
    /// The destination's fault: goes again, attempt refunded, however long it lasts (P7). If the destination takes
    /// nothing else either, its breaker opens; if it is [`Throttled`](Trouble::Throttled), requests to it are paced.
    Unavailable {
        /// What the destination is troubled by.
        trouble: Trouble,
        /// What went wrong.
        error: String,
    },
    /// No answer in time. The dispatcher tells whose fault it is: the message's (`Backoff`) if it was sent by itself and
    /// the destination accepted others meanwhile, the destination's (`Unavailable`) otherwise.
    TimedOut {
        /// What went wrong.
        error: String,
    },
    /// Nobody thought of this one. The row is left to its lease, attempt spent, and the log is loud: hiding a bug
    /// behind retries would be worse.
    Unclassified {
        /// What went wrong.
        error: String,
    },
    /// Not sent, because a message of its aggregate before it in the request was not published, and to send this one
    /// would have broken the order. Handed back, attempt refunded. Of any other message it counts as `Unclassified`.
    Untried,
}

impl Outcome {
    /// `Published` without a word from the broker.
    #[must_use]
    pub const fn published() -> Self {
        Self::Published { broker_message_id: None, broker_sequence: None }
    }

    /// The class, as metrics and logs name it.
    #[must_use]
    pub const fn class(&self) -> &'static str {
        match self {
            Self::Published { .. } => "published",
            Self::Backoff { .. } => "backoff",
            Self::Defer { .. } => "defer",
            Self::Permanent { .. } => "permanent",
            Self::Unavailable { .. } => "unavailable",
            Self::TimedOut { .. } => "timed out",
            Self::Unclassified { .. } => "unclassified",
            Self::Untried => "untried",
        }
    }
}

/// What a finalize writes for one row.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// `done`.
    Done {
        /// Kept for audit.
        broker_message_id: Option<String>,
        /// Kept for audit.
        broker_sequence: Option<String>,
    },
    /// `pending` after `delay`, attempt spent.
    Backoff {
        /// Time from the finalize, by the database clock.
        delay: Duration,
        /// Goes to `last_error`.
        error: String,
    },
    /// `pending` after `delay`, attempt refunded.
    Defer {
        /// Time from the finalize, by the database clock.
        delay: Duration,
        /// Goes to `last_error`.
        error: String,
    },
    /// `dead`.
    Dead {
        /// Goes to `last_error`.
        error: String,
    },
}

/// When patience ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Attempts after which a failing message is dead. Default 12.
    pub max_attempts: u32,
    /// Age after which a deferred message is dead. Default 24 h.
    pub max_defer_age: Duration,
    /// Waits between attempts.
    pub backoff: Backoff,
}

impl Default for Patience {
    fn default() -> Self {
        Self { max_attempts: 12, max_defer_age: Duration::from_hours(24), backoff: Backoff::default() }
    }
}

impl Patience {
    /// Turns an outcome into a verdict. `None`: there is none, since nobody knows what happened or nothing did.
    ///
    /// `wait` is the longest time, up to [`MAX_OUTAGE_WAIT`], until a message is due again that its destination did not
    /// take. Zero where a breaker holds it back.
    #[must_use]
    pub fn verdict(&self, message: &Message, outcome: Outcome, wait: Duration) -> Option<Verdict> {
        let attempts = u32::try_from(message.attempts).unwrap_or(0);
        match outcome {
            Outcome::Published { broker_message_id, broker_sequence } => Some(Verdict::Done {
                broker_message_id: broker_message_id.as_deref().map(clean),
                broker_sequence: broker_sequence.as_deref().map(clean),
            }),
            Outcome::Backoff { error } if attempts >= self.max_attempts => {
                Some(Verdict::Dead { error: clean(&format!("retries exhausted after {attempts} attempts: {error}")) })
            }
            Outcome::Backoff { error } => {
                Some(Verdict::Backoff { delay: self.backoff.full_jitter(attempts), error: clean(&error) })
            }
            Outcome::Defer { reason, .. } if message.age >= self.max_defer_age => Some(Verdict::Dead {
                error: clean(&format!(
                    "deferred past the maximum age of {}: {reason}",
                    humantime::format_duration(self.max_defer_age)
                )),
            }),
            Outcome::Defer { delay, reason } => {
                Some(Verdict::Defer { delay, error: clean(&format!("deferred: {reason}")) })
            }
            Outcome::Permanent { error } => Some(Verdict::Dead { error: clean(&error) }),
            // a timeout that nobody was blamed for is taken for an outage
            Outcome::Unavailable { error, .. } | Outcome::TimedOut { error } => Some(Verdict::Defer {
                delay: jitter(wait.min(MAX_OUTAGE_WAIT)),
                error: clean(&format!("destination unavailable: {error}")),
            }),
            Outcome::Unclassified { .. } | Outcome::Untried => None,
        }
    }
}

/// A text that any row can hold: no NUL (PostgreSQL refuses it), at most [`MAX_ERROR_CHARS`] characters. A
/// finalize must not fail because of the failure it reports.
fn clean(text: &str) -> String {
    text.chars().filter(|c| *c != '\0').take(MAX_ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(attempts: i32, age: Duration) -> Message {
        Message {
            id: 7,
            lease_version: 3,
            attempts,
            aggregate_type: "order".into(),
            aggregate_id: "order-7".into(),
            event_type: "OrderPlaced".into(),
            payload: "{}".into(),
            headers_json: "{}".into(),
            first_tried: None,
            age,
        }
    }

    fn verdict(attempts: i32, outcome: Outcome) -> Option<Verdict> {
        Patience::default().verdict(&message(attempts, Duration::ZERO), outcome, Duration::ZERO)
    }

    #[test]
    fn a_published_message_is_done_and_keeps_what_the_broker_said() {
        let outcome = Outcome::Published { broker_message_id: Some("m".into()), broker_sequence: Some("1".into()) };
        let done = Verdict::Done { broker_message_id: Some("m".into()), broker_sequence: Some("1".into()) };
        assert_eq!(verdict(1, outcome), Some(done));
    }

    #[test]
    fn a_failing_message_backs_off_until_its_last_attempt_and_is_dead_then() {
        let failure = || Outcome::Backoff { error: "throttled entry".into() };
        for attempts in 1..12 {
            let Some(Verdict::Backoff { delay, error }) = verdict(attempts, failure()) else {
                panic!("attempt {attempts} is not the last");
            };
            assert!(delay <= Backoff::default().ceiling(attempts as u32));
            assert_eq!(error, "throttled entry");
        }
        for attempts in [12, 13, i32::MAX] {
            let error = format!("retries exhausted after {attempts} attempts: throttled entry");
            assert_eq!(verdict(attempts, failure()), Some(Verdict::Dead { error }));
        }
    }

    // C27
    #[test]
    fn a_deferral_waits_as_long_as_asked_and_dies_at_the_maximum_age() {
        let patience = Patience::default();
        let defer = || Outcome::Defer { delay: Duration::from_secs(30), reason: "no account yet".into() };
        let just_younger = message(9, patience.max_defer_age.checked_sub(Duration::from_millis(1)).unwrap());
        assert_eq!(
            patience.verdict(&just_younger, defer(), Duration::ZERO),
            Some(Verdict::Defer { delay: Duration::from_secs(30), error: "deferred: no account yet".into() })
        );
        assert_eq!(
            patience.verdict(&message(1, patience.max_defer_age), defer(), Duration::ZERO),
            Some(Verdict::Dead { error: "deferred past the maximum age of 1day: no account yet".into() })
        );
    }

    #[test]
    fn a_permanent_failure_is_dead_at_the_first_attempt() {
        let outcome = Outcome::Permanent { error: "illegal character".into() };
        assert_eq!(verdict(1, outcome), Some(Verdict::Dead { error: "illegal character".into() }));
    }

    #[test]
    fn an_outage_refunds_the_attempt_whatever_the_count_and_the_age() {
        for attempts in [1, 12, 1_000] {
            let old = message(attempts, Duration::from_hours(8760));
            let outcome = Outcome::Unavailable { trouble: Trouble::Network, error: "connection refused".into() };
            let Some(Verdict::Defer { delay, error }) =
                Patience::default().verdict(&old, outcome, Duration::from_hours(1))
            else {
                panic!("an outage killed a message at attempt {attempts}");
            };
            assert!(delay <= MAX_OUTAGE_WAIT);
            assert_eq!(error, "destination unavailable: connection refused");
        }
    }

    #[test]
    fn an_unclassified_failure_and_a_message_that_was_not_tried_have_no_verdict() {
        assert_eq!(verdict(1, Outcome::Unclassified { error: "?".into() }), None);
        assert_eq!(verdict(1, Outcome::Untried), None);
    }

    // C28
    #[test]
    fn an_error_text_is_stored_short_and_without_nul() {
        let huge = "\0é".repeat(1_000_000);
        let Some(Verdict::Dead { error }) = verdict(1, Outcome::Permanent { error: huge }) else { panic!("not dead") };
        assert_eq!(error, "é".repeat(MAX_ERROR_CHARS));
    }
}
