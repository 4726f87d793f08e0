//! Everything the server knows: queues, clock, what went wrong and what was sent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::fault::{Fault, Loss};
use super::protocol::{Refusal, Request};
use super::queue::{Entry, FifoQueue};
use super::{Accepted, Arrival};

pub(super) type Script = Box<dyn FnMut(&Request) -> Option<Fault> + Send>;

/// What goes back.
pub(super) enum Answer {
    Reply { status: u16, code: Option<&'static str>, retry_after: Option<u32>, body: String },
    Reset,
    Close,
    Hang,
    Trickle { body: String },
}

/// The server's side of a door that a request waits at.
pub(super) struct Held {
    pub(super) arrived: oneshot::Sender<()>,
    pub(super) opened: oneshot::Receiver<()>,
    pub(super) served: oneshot::Sender<()>,
}

/// Requests a second, with as many at once as a tenth of a second earns.
pub(super) struct Limit {
    rate: f64,
    earned: f64,
    at: Instant,
}

pub(super) struct State {
    pub(super) port: u16,
    pub(super) queues: BTreeMap<String, FifoQueue>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) accepted: Vec<Accepted>,
    pub(super) script: Option<Script>,
    pub(super) doors: VecDeque<Held>,
    /// Access key ids that are taken, and the code others are refused with.
    pub(super) trusted: Option<(Vec<String>, &'static str)>,
    pub(super) limit: Option<Limit>,
    pub(super) over_limit: usize,
    pub(super) moved: Duration,
    started: Instant,
}

impl Limit {
    pub(super) fn new(rate: u32) -> Self {
        Self { rate: f64::from(rate), earned: 1.0, at: Instant::now() }
    }

    fn takes(&mut self) -> bool {
        let now = Instant::now();
        self.earned = (self.earned + (now - self.at).as_secs_f64() * self.rate).min((self.rate / 10.0).max(1.0));
        self.at = now;
        let takes = self.earned >= 1.0;
        self.earned -= f64::from(u8::from(takes));
        takes
    }
}

impl Answer {
    fn ok(body: String) -> Self {
        Self::Reply { status: 200, code: None, retry_after: None, body }
    }

    fn refused(refusal: &Refusal) -> Self {
        let Refusal { status, code, message } = refusal;
        let kind = code.strip_prefix("AWS.SimpleQueueService.").unwrap_or(code);
        let kind = if kind == "NonExistentQueue" { "QueueDoesNotExist" } else { kind };
        let body = json!({"__type": format!("com.amazonaws.sqs#{kind}"), "message": message}).to_string();
        Self::Reply { status: *status, code: Some(code), retry_after: None, body }
    }

    fn scripted(status: u16, code: &'static str) -> Self {
        Self::refused(&Refusal { status, code, message: "scripted".to_owned() })
    }
}

impl State {
    pub(super) fn new(port: u16) -> Self {
        Self {
            port,
            queues: BTreeMap::new(),
            arrivals: Vec::new(),
            accepted: Vec::new(),
            script: None,
            doors: VecDeque::new(),
            trusted: None,
            limit: None,
            over_limit: 0,
            moved: Duration::ZERO,
            started: Instant::now(),
        }
    }

    /// Time since the start, with what the test moved it by.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed() + self.moved
    }

    pub(super) fn answer(&mut self, request: &Request) -> Answer {
        if request.sends() {
            self.arrivals.push(Arrival {
                at: Instant::now(),
                queue: request.queue.clone(),
                deduplication_ids: request.entries.iter().map(|entry| entry.deduplication_id.clone()).collect(),
                groups: request.entries.iter().map(|entry| entry.group.clone()).collect(),
                bytes: request.entries.iter().map(Entry::size).sum(),
            });
        }
        if let Some((keys, code)) = &self.trusted
            && !keys.contains(&request.access_key)
        {
            return Answer::scripted(403, code);
        }
        if request.sends() && self.limit.as_mut().is_some_and(|limit| !limit.takes()) {
            self.over_limit += 1;
            return Answer::scripted(403, "RequestThrottled");
        }
        let fault = self.script.as_mut().and_then(|script| script(request));
        match &fault {
            Some(Fault::Reset) => return Answer::Reset,
            Some(Fault::Close) => return Answer::Close,
            Some(Fault::Hang) => return Answer::Hang,
            Some(Fault::Refused(status, code)) => return Answer::scripted(*status, code),
            Some(Fault::RetryAfter(milliseconds)) => {
                return Answer::Reply {
                    status: 403,
                    code: Some("RequestThrottled"),
                    retry_after: Some(*milliseconds),
                    body: "{}".to_owned(),
                };
            }
            Some(Fault::Says(status, body)) => {
                return Answer::Reply { status: *status, code: None, retry_after: None, body: body.clone() };
            }
            Some(Fault::LosesReply(_) | Fault::Entries(_)) | None => {}
        }
        let body = match self.operate(request, fault.as_ref().map_or(&[], Fault::of_entries)) {
            Ok(body) => body.to_string(),
            Err(refusal) => return Answer::refused(&refusal),
        };
        match fault {
            Some(Fault::LosesReply(Loss::Reset)) => Answer::Reset,
            Some(Fault::LosesReply(Loss::Hang)) => Answer::Hang,
            Some(Fault::LosesReply(Loss::Trickle)) => Answer::Trickle { body },
            _ => Answer::ok(body),
        }
    }
}
