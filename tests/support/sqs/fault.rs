//! What can go wrong with a request.

use serde_json::Value;

/// Of a whole request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is accepted, and the connection is reset.
    Reset,
    /// Nothing is accepted, and the connection is closed without a reply.
    Close,
    /// Nothing is accepted, and no reply comes as long as the client waits.
    Hang,
    /// Refused, with this HTTP status and code.
    Refused(u16, &'static str),
    /// Throttled, and asked to come again after so many milliseconds.
    RetryAfter(u32),
    /// A reply with this HTTP status and body, whatever was asked. Nothing is accepted.
    Says(u16, String),
    /// Accepted as if nothing were wrong, and then the reply is lost.
    LosesReply(Loss),
    /// Entry by entry, by place; those without a fault are accepted.
    Entries(Vec<Option<EntryFault>>),
}

/// How a reply is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The connection is reset.
    Reset,
    /// It never comes.
    Hang,
    /// It comes byte by byte, and no client waits for its end.
    Trickle,
}

/// Of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFault {
    /// Refused with this code, and whether SQS blames the sender.
    Refused(&'static str, bool),
    /// Accepted, and the reply has no word on it.
    AcceptedUnmentioned,
    /// Not accepted, and the reply has no word on it.
    Forgotten,
    /// Accepted, and the reply names an id that was not sent.
    Misnamed,
    /// Not accepted, and said to be accepted and to have failed.
    Contradicted,
}

impl Fault {
    /// HTTP 200 with this body.
    pub fn says(body: &Value) -> Self {
        Self::Says(200, body.to_string())
    }
}
