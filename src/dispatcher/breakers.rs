//! The breakers of all destinations, between the publish stage, which tells them what came back, and the claimer, which
//! asks them what may be claimed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::breaker::{Breaker, Gate, Landing, Turn};
use super::suspects::Counts;
use crate::backoff::Backoff;
use crate::message::Message;
use crate::metrics;
use crate::outcome::Trouble;
use crate::publisher::{Destination, Publisher};

#[derive(Debug)]
pub(super) struct Breakers {
    pause: Backoff,
    most: u32,
    by_destination: Mutex<HashMap<Destination, Entry>>,
}

#[derive(Debug)]
struct Entry {
    breaker: Breaker,
    counts: Counts,
    /// What goes there; `None`: everything.
    aggregate_types: Option<Vec<String>>,
}

/// What may be claimed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admission {
    /// Nothing of these aggregate types.
    pub(super) except: Vec<String>,
    /// A pause has just ended: a few rows from the front on will do, to find one to probe with.
    pub(super) probes: bool,
}

/// Where a request stood when it left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) started: Instant,
    pub(super) is_probe: bool,
    pub(super) counts: Counts,
}

impl Breakers {
    /// `pause`: between two probes. `most`: requests in flight to one destination.
    pub(super) fn new(pause: Backoff, most: u32) -> Self {
        Self { pause, most, by_destination: Mutex::default() }
    }

    /// What may be claimed now; or nothing, before this.
    pub(super) fn admission(&self, now: Instant) -> Result<Admission, Instant> {
        let mut admission = Admission { except: Vec::new(), probes: false };
        let mut nothing_before = None;
        for (destination, entry) in &mut *self.lock() {
            let was_open = entry.breaker.is_open();
            if entry.breaker.admits(now) {
                if was_open {
                    admission.probes = true;
                    report(destination, &entry.breaker);
                }
                continue;
            }
            match &entry.aggregate_types {
                Some(aggregate_types) => admission.except.extend(aggregate_types.iter().cloned()),
                // not before all of them admit
                None => nothing_before = nothing_before.max(entry.breaker.admits_again_at()),
            }
        }
        admission.except.sort_unstable();
        nothing_before.map_or(Ok(admission), Err)
    }

    /// When more may be claimed than now, without any word from a destination.
    pub(super) fn admits_more_at(&self) -> Option<Instant> {
        self.lock().values().filter_map(|entry| entry.breaker.admits_again_at()).min()
    }

    /// These were claimed, and will have been sent or handed back by `until`.
    pub(super) fn claimed(&self, messages: &[Message], until: Instant) {
        for entry in self.lock().values_mut().filter(|entry| entry.breaker.wants_candidates()) {
            let is_candidate = |message: &Message| match &entry.aggregate_types {
                Some(aggregate_types) => aggregate_types.contains(&message.aggregate_type),
                None => true,
            };
            if messages.iter().any(is_candidate) {
                entry.breaker.claimed(until);
            }
        }
    }

    /// Whether what goes there is to be handed back.
    pub(super) fn is_open(&self, destination: &Destination, publisher: &impl Publisher) -> bool {
        self.with(destination, publisher, |entry| entry.breaker.is_open())
    }

    /// What may be sent there.
    pub(super) fn gate(&self, destination: &Destination, now: Instant) -> Gate {
        self.lock().get(destination).map_or(Gate::Shut, |entry| entry.breaker.gate(now))
    }

    /// A request leaves.
    pub(super) fn departs(&self, destination: &Destination, publisher: &impl Publisher, now: Instant) -> Departure {
        self.with(destination, publisher, |entry| Departure {
            started: now,
            is_probe: entry.breaker.departs(),
            counts: entry.counts,
        })
    }

    /// Counts an answer, or its absence.
    pub(super) fn count(&self, destination: &Destination, publisher: &impl Publisher, hung: bool) -> Counts {
        self.with(destination, publisher, |entry| {
            *(if hung { &mut entry.counts.hung } else { &mut entry.counts.answered }) += 1;
            entry.counts
        })
    }

    /// A request came back. What that changes is logged and counted.
    pub(super) fn lands(
        &self,
        destination: &Destination,
        publisher: &impl Publisher,
        departure: Departure,
        landing: Landing,
        error: Option<&str>,
    ) -> Option<Turn> {
        let now = Instant::now();
        self.with(destination, publisher, |entry| {
            let was_down_since = entry.breaker.down_since();
            let turn = entry.breaker.lands(landing, departure.is_probe, departure.started, now);
            if let Landing::Failed(trouble) = landing {
                metrics::destination_trouble(destination.label(), trouble);
            }
            let down_seconds = |since: Option<Instant>| since.map(|since| (now - since).as_secs());
            match (turn, landing) {
                (Some(Turn::Opened), Landing::Failed(trouble)) => {
                    metrics::breaker_opened(destination.label(), trouble);
                    tracing::warn!(
                        %destination,
                        trouble = trouble.as_str(),
                        error,
                        "destination unavailable; its breaker is open: nothing is claimed for it, attempts are refunded"
                    );
                }
                (Some(Turn::StaysOpen), Landing::Failed(trouble)) => tracing::warn!(
                    %destination,
                    trouble = trouble.as_str(),
                    error,
                    since_seconds = down_seconds(entry.breaker.down_since()),
                    "destination still unavailable"
                ),
                (Some(Turn::Closed), _) => tracing::info!(
                    %destination,
                    since_seconds = down_seconds(was_down_since),
                    "destination available again; its breaker is closed"
                ),
                _ => {}
            }
            report(destination, &entry.breaker);
            turn
        })
    }

    fn with<T>(&self, destination: &Destination, publisher: &impl Publisher, act: impl FnOnce(&mut Entry) -> T) -> T {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(destination) {
            return act(entry);
        }
        let entry = entries.entry(destination.clone()).or_insert_with(|| {
            metrics::breaker_known(destination.label(), Trouble::ALL);
            Entry {
                breaker: Breaker::new(self.pause, self.most, Instant::now()),
                counts: Counts::default(),
                aggregate_types: publisher.aggregate_types(destination),
            }
        });
        report(destination, &entry.breaker);
        act(entry)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Destination, Entry>> {
        // nothing is left half done by a panic: every change is one of plain values
        self.by_destination.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(destination: &Destination, breaker: &Breaker) {
    let state = match () {
        () if breaker.is_closed() => 0.0,
        () if breaker.is_open() => 2.0,
        () => 1.0,
    };
    metrics::breaker(destination.label(), state, breaker.width());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::lane::tests::held;
    use super::*;
    use crate::outcome::Outcome;
    use crate::publisher::{Limits, RecordingPublisher};

    const PAUSE: Backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(1) };

    /// Aggregate types `a` and `b` go to `one`, `c` to `two`.
    struct Two;

    impl Publisher for Two {
        fn destination(&self, message: &Message) -> Option<Destination> {
            Some(Destination::new(if message.aggregate_type == "c" { "two" } else { "one" }))
        }

        fn aggregate_types(&self, destination: &Destination) -> Option<Vec<String>> {
            let types: &[&str] = if destination.as_str() == "one" { &["b", "a"] } else { &["c"] };
            Some(types.iter().map(|kind| (*kind).to_owned()).collect())
        }

        fn limits(&self, _destination: &Destination) -> Limits {
            Limits { entries: 10, bytes: 100 }
        }

        fn size(&self, _message: &Message) -> usize {
            1
        }

        async fn publish(&self, _destination: &Destination, messages: &[Message]) -> Vec<Outcome> {
            vec![Outcome::published(); messages.len()]
        }
    }

    fn fail(breakers: &Breakers, name: &str, publisher: &impl Publisher) {
        let destination = Destination::new(name);
        let departure = breakers.departs(&destination, publisher, Instant::now());
        breakers.lands(&destination, publisher, departure, Landing::Failed(Trouble::Kms), Some("KmsAccessDenied"));
        assert!(breakers.is_open(&destination, publisher));
    }

    fn of_type(aggregate_type: &str) -> Message {
        let mut message = held("x", 1).message;
        message.aggregate_type = aggregate_type.into();
        message
    }

    #[tokio::test]
    async fn while_one_destination_is_down_nothing_of_its_aggregate_types_is_claimed_and_everything_else_is() {
        let breakers = Breakers::new(PAUSE, 16);
        let now = Instant::now();
        assert!(!breakers.is_open(&Destination::new("two"), &Two));
        assert_eq!(breakers.admission(now), Ok(Admission { except: vec![], probes: false }));
        fail(&breakers, "one", &Two);
        let except = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(breakers.admission(now), Ok(Admission { except: except(&["a", "b"]), probes: false }));
        let later = now + 2 * PAUSE.cap;
        assert_eq!(breakers.admission(later), Ok(Admission { except: vec![], probes: true }));
        assert_eq!(breakers.admission(later), Ok(Admission { except: vec![], probes: false }), "only at first");
        breakers.claimed(&[of_type("c")], later + PAUSE.cap);
        assert_eq!(breakers.admission(later), Ok(Admission { except: vec![], probes: false }), "none to probe with");
        breakers.claimed(&[of_type("c"), of_type("a")], later + PAUSE.cap);
        assert_eq!(breakers.admission(later), Ok(Admission { except: except(&["a", "b"]), probes: false }));
        assert_eq!(breakers.admits_more_at(), Some(later + PAUSE.cap));
    }

    #[tokio::test]
    async fn while_the_destination_of_everything_is_down_nothing_is_claimed() {
        let (breakers, publisher) = (Breakers::new(PAUSE, 16), RecordingPublisher::new());
        let now = Instant::now();
        fail(&breakers, "all", &publisher);
        let until = breakers.admission(now).unwrap_err();
        assert!(until <= Instant::now() + PAUSE.cap);
        assert_eq!(breakers.admits_more_at(), Some(until));
        assert_eq!(breakers.admission(until), Ok(Admission { except: vec![], probes: true }));
    }
}
