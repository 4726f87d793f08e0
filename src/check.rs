//! What is looked at before a dispatcher starts, and what was found.
//!
//! The looks themselves are where what they look at is: [`DispatcherConfig::checks`](crate::DispatcherConfig::checks),
//! [`Store::checks`](crate::Store::checks), [`SqsPublisher::checks`](crate::publisher::SqsPublisher::checks).

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// How long one look may take. Far beyond any healthy answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// What a check found, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it has to be.
    Ok,
    /// Works, but not as well as it could, or not for sure.
    Warning,
    /// Nobody can tell: what it depends on failed, or gave no answer. Not a pass.
    Unknown,
    /// A promise would be broken, or nothing would be sent.
    Problem,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Problem => "problem",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What: a few words that stay the same, for example `clock skew`.
    pub name: &'static str,
    /// Of what, where there can be several: the queue's URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Whether it is as it has to be.
    pub state: State,
    /// What was found; unless it is ok, a sentence that names the remedy.
    pub finding: String,
}

impl Check {
    /// What was found.
    #[must_use]
    pub fn new(name: &'static str, state: State, finding: impl Into<String>) -> Self {
        Self { name, subject: None, state, finding: finding.into() }
    }

    /// As it has to be.
    #[must_use]
    pub fn ok(name: &'static str, finding: impl Into<String>) -> Self {
        Self::new(name, State::Ok, finding)
    }

    /// Not as it has to be: a sentence that names the remedy.
    #[must_use]
    pub fn problem(name: &'static str, finding: &(impl ToString + ?Sized)) -> Self {
        Self::new(name, State::Problem, finding.to_string())
    }

    /// The same, of this queue.
    pub(crate) fn of(self, subject: &str) -> Self {
        Self { subject: Some(subject.to_owned()), ..self }
    }
}
