//! A publisher in memory that records what it accepted, and fails as scripted. For tests, yours and ours.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Destination, Limits, Publisher};
use crate::message::{Message, MessageId};
use crate::outcome::Outcome;

/// Accepts every message, except where a script says otherwise. Clones share the record.
#[derive(Clone, Debug, Default)]
pub struct RecordingPublisher {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    accepted: Vec<Message>,
    requests: Vec<Vec<MessageId>>,
    scripts: HashMap<MessageId, VecDeque<Outcome>>,
}

impl RecordingPublisher {
    /// A publisher that accepts everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next tries of this message end so, one after the other; after that it is accepted.
    pub fn script(&self, id: MessageId, outcomes: impl IntoIterator<Item = Outcome>) {
        self.with(|state| state.scripts.entry(id).or_default().extend(outcomes));
    }

    /// Every message accepted so far, in the order of acceptance; one accepted twice is there twice.
    #[must_use]
    pub fn accepted(&self) -> Vec<Message> {
        self.with(|state| state.accepted.clone())
    }

    /// The ids of [`accepted`](Self::accepted).
    #[must_use]
    pub fn accepted_ids(&self) -> Vec<MessageId> {
        self.with(|state| state.accepted.iter().map(|message| message.id).collect())
    }

    /// The ids of every request so far, failed ones included, in the order of arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<Vec<MessageId>> {
        self.with(|state| state.requests.clone())
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        // a test that panicked elsewhere does not make the record wrong
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Publisher for RecordingPublisher {
    fn destination(&self, _message: &Message) -> Option<Destination> {
        Some(Destination::new("recording"))
    }

    fn limits(&self, _destination: &Destination) -> Limits {
        Limits { entries: 10, bytes: 1 << 20 }
    }

    fn size(&self, message: &Message) -> usize {
        message.payload.len()
    }

    async fn publish(&self, _destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
        self.with(|state| {
            state.requests.push(messages.iter().map(|message| message.id).collect());
            messages
                .iter()
                .map(|message| {
                    let scripted = state.scripts.get_mut(&message.id).and_then(VecDeque::pop_front);
                    let outcome = scripted.unwrap_or_else(|| Outcome::Published {
                        broker_message_id: Some(format!("recorded-{}", message.id)),
                        broker_sequence: Some((state.accepted.len() + 1).to_string()),
                    });
                    if matches!(outcome, Outcome::Published { .. }) {
                        state.accepted.push(message.clone());
                    }
                    outcome
                })
                .collect()
        })
    }
}
