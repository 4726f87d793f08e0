//! Values of options: durations, ids, names.

use std::fmt;
use std::time::Duration;

use ordered_outbox::MessageId;

/// Longer than anything sensible, and far inside PostgreSQL's range of dates.
const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);

/// A duration as people write it, for example `500ms`, `60s` or `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // a unit without blanks and plurals, so that a default reads like what one would type
        let (seconds, millis) = (self.0.as_secs(), self.0.subsec_millis());
        match (seconds, millis) {
            (_, 1..) => write!(f, "{}ms", self.0.as_millis()),
            (0, 0) => f.write_str("0s"),
            (s, 0) if s % 86_400 == 0 => write!(f, "{}d", s / 86_400),
            (s, 0) if s % 3_600 == 0 => write!(f, "{}h", s / 3_600),
            (s, 0) => write!(f, "{s}s"),
        }
    }
}

impl Span {
    /// Any duration, zero included.
    pub(crate) fn any(text: &str) -> Result<Self, String> {
        let duration = humantime::parse_duration(text)
            .map_err(|_| "write a number and a unit, for example 500ms, 60s, 15m, 12h or 7d".to_owned())?;
        if duration > LONGEST {
            return Err("choose 100 years or less".to_owned());
        }
        Ok(Self(duration))
    }

    /// A duration that is not zero.
    pub(crate) fn positive(text: &str) -> Result<Self, String> {
        match Self::any(text)? {
            Self(Duration::ZERO) => Err("choose more than zero".to_owned()),
            span => Ok(span),
        }
    }
}

/// The id of a row.
pub(crate) fn message_id(text: &str) -> Result<MessageId, String> {
    match text.parse::<MessageId>() {
        Ok(id) if id > 0 => Ok(id),
        _ => Err("a message id is a whole number from 1, as `outbox gates` prints it".to_owned()),
    }
}

/// Text that says something.
pub(crate) fn not_blank(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("it is empty: write at least one word".to_owned());
    }
    Ok(text.to_owned())
}

/// `NAME=VALUE`, split at the first `=`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// `1 message`, `2 messages`.
pub(crate) fn messages(count: u64) -> String {
    if count == 1 { "1 message".to_owned() } else { format!("{count} messages") }
}

/// A span of time for people: seconds up to two units, for example `3h 12m`.
pub(crate) fn age(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(LONGEST).as_secs();
    let (days, hours, minutes) = (whole / 86_400, whole / 3_600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", whole % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_read_as_it_is_written() {
        for text in ["0s", "500ms", "1500ms", "10s", "300s", "5h", "1d", "7d"] {
            assert_eq!(Span::any(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_span_that_makes_no_sense_is_refused() {
        for text in ["", "60", "-1s", "1 fortnight", "101y", "584554530000y", "99999999999999999999s"] {
            assert!(Span::any(text).is_err(), "{text}");
        }
        assert!(Span::positive("0ms").is_err());
    }

    #[test]
    fn an_age_has_at_most_two_units() {
        let ages = [-1.0, 59.9, 61.0, 3_700.0, 90_000.0, f64::MAX].map(age);
        assert_eq!(ages, ["0s", "59s", "1m 1s", "1h 1m", "1d 1h", "36500d 0h"]);
    }
}
