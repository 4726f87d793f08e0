//! The publish stage: fills requests with the heads of lanes, and turns outcomes into verdicts.
//!
//! Continuous batching: a request goes out as soon as a destination has a free slot and a lane waits, with as many
//! heads as are ready then. Under load the slots are taken and requests fill up; idle, a message does not wait for
//! company. No aggregate has two requests in flight, and no request holds two messages of one aggregate (P2), unless
//! group batching allows some: then what heads leave free is filled with the messages right behind them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Summary;
use super::breaker::{Landing, Turn};
use super::breakers::{Breakers, Departure};
use super::finalizer::Finish;
use super::gap;
use super::lane::{Held, Lane};
use super::ready::{Batch, Ready};
use super::share::{Share, Tail, Tried};
use super::suspects::Suspects;
use super::wakeup::Wakeup;
use crate::config::{DEDUPLICATION_WINDOW, DispatcherConfig};
use crate::message::Message;
use crate::metrics;
use crate::outcome::{Outcome, Trouble, Verdict};
use crate::publisher::{Destination, Publisher};
use crate::store::Finalize;

/// Owns every lane between claim and finalize.
pub(super) struct PublishStage<P> {
    publisher: Arc<P>,
    config: DispatcherConfig,
    finishes: mpsc::Sender<Finish>,
    ready: Ready,
    requests: JoinSet<Landed>,
    breakers: Arc<Breakers>,
    suspects: Suspects,
    wakeup: Arc<Wakeup>,
    summary: Summary,
}

/// A request that came back.
struct Landed {
    destination: Destination,
    departure: Departure,
    sent: Vec<Message>,
    tails: Vec<Tail>,
    reply: Reply,
}

enum Reply {
    Outcomes(Vec<Outcome>),
    TimedOut,
    Panicked,
}

/// What becomes of a lane after a request.
enum Ended {
    /// Its next message can go.
    Advances(Lane),
    /// The destination was asked too much: the same message goes again, when its pace allows.
    Waits(Lane),
    /// The rest of it was handed back.
    Over,
}

const fn is_published(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Published { .. })
}

/// Where the throttled end of a lane's share begins: nothing behind it was accepted.
fn throttled_end(tried: &[Tried]) -> usize {
    let first = tried.iter().position(|tried| !tried.is_published()).unwrap_or(tried.len());
    let is_throttled = |tried: &Tried| {
        matches!(tried.outcome, Outcome::Unavailable { trouble: Trouble::Throttled, .. } | Outcome::Untried)
    };
    let begins = tried.get(first).is_some_and(|tried| !matches!(tried.outcome, Outcome::Untried));
    if begins && tried[first..].iter().all(is_throttled) { first } else { tried.len() }
}

/// What a request tells about its destination.
fn landing(outcomes: &[Outcome]) -> (Landing, Option<&str>) {
    let mut troubles = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Unavailable { trouble, error } => Some((*trouble, error.as_str())),
        _ => None,
    });
    if outcomes.iter().any(is_published) {
        let throttled = troubles.find(|(trouble, _)| *trouble == Trouble::Throttled);
        return throttled.map_or((Landing::Answered, None), |(trouble, error)| (Landing::Failed(trouble), Some(error)));
    }
    // that one takes fewer requests matters less than that it takes none
    let (throttled, others): (Vec<_>, Vec<_>) = troubles.partition(|(trouble, _)| *trouble == Trouble::Throttled);
    if let Some((trouble, error)) = others.first().or(throttled.first()) {
        return (Landing::Failed(*trouble), Some(error));
    }
    // Backoff: the broker had a word for this very message. Permanent may be our own, before anything was sent.
    let is_answer = |outcome: &Outcome| matches!(outcome, Outcome::Backoff { .. } | Outcome::Defer { .. });
    (if outcomes.iter().any(is_answer) { Landing::Answered } else { Landing::Mute }, None)
}

impl<P: Publisher> PublishStage<P> {
    pub(super) fn new(
        publisher: P,
        config: DispatcherConfig,
        finishes: mpsc::Sender<Finish>,
        breakers: Arc<Breakers>,
        wakeup: Arc<Wakeup>,
    ) -> Self {
        Self {
            publisher: Arc::new(publisher),
            config,
            finishes,
            ready: Ready::default(),
            requests: JoinSet::new(),
            breakers,
            suspects: Suspects::default(),
            wakeup,
            summary: Summary::default(),
        }
    }

    /// Runs until no more lanes come and every message has its verdict. After `stop` nothing new is sent: what waits
    /// is handed back, what is in flight ends.
    pub(super) async fn run(mut self, mut lanes: mpsc::Receiver<Vec<Lane>>, stop: CancellationToken) -> Summary {
        let mut more = true;
        while more || !self.ready.is_empty() || !self.requests.is_empty() {
            if stop.is_cancelled() {
                for lane in self.ready.take_all() {
                    self.release_all(lane).await;
                }
            }
            let later = self.start_requests().await;
            tokio::select! {
                claimed = lanes.recv(), if more => match claimed {
                    Some(claimed) => for lane in claimed {
                        self.accept(lane).await;
                    },
                    None => more = false,
                },
                Some(landed) = self.requests.join_next() => match landed {
                    Ok(landed) => self.land(landed).await,
                    // the request's own panics are caught inside it
                    Err(error) => tracing::error!(%error, "a publish request was lost; its rows are left to their lease"),
                },
                () = tokio::time::sleep_until(later.unwrap_or_else(Instant::now)), if later.is_some() => {}
                () = stop.cancelled(), if !self.ready.is_empty() => {}
                // the last waiting lanes were just handed back
                else => {}
            }
        }
        self.summary
    }

    async fn accept(&mut self, lane: Lane) {
        let Some(head) = lane.head() else { return };
        match self.publisher.destination(head) {
            Some(destination) if self.breakers.is_open(&destination, self.publisher.as_ref()) => {
                self.release_all(lane).await;
            }
            Some(destination) => self.ready.push(&destination, lane),
            None => self.refuse(lane).await,
        }
    }

    /// A lane without a route waits like one whose destination is down: it may be a missing flag of this process.
    async fn refuse(&mut self, mut lane: Lane) {
        let Some(Held { message, permit }) = lane.take_head() else { return };
        let aggregate_type = &message.aggregate_type;
        let error = format!("no route for aggregate type `{aggregate_type}`: add one and start again");
        tracing::error!(id = message.id, %error, "not published");
        // the older, the less often: somebody has to do something about it
        let wait = message.age.max(self.config.patience.backoff.base);
        let tried = vec![Tried { message, permit, outcome: Outcome::Unavailable { trouble: Trouble::Route, error } }];
        // an outcome that is not Published ends the lane
        let _ended = self.conclude(tried, lane, wait).await;
    }

    /// Starts what may start now. Returns when a gate opens by itself that a lane waits behind.
    async fn start_requests(&mut self) -> Option<Instant> {
        for lane in self.ready.take_too_late(Instant::now()) {
            tracing::warn!(id = lane.head().map(|head| head.id), "the lease is nearly over; handed back untried");
            self.release_all(lane).await;
        }
        let (now, group_batching) = (Instant::now(), self.config.group_batching as usize);
        let breakers = Arc::clone(&self.breakers);
        let gate = |destination: &Destination| breakers.gate(destination, now);
        while let Some(batch) = self.ready.take(self.publisher.as_ref(), gate, group_batching, &self.suspects) {
            self.start(batch);
        }
        // asked of the same moment: of a later one the gate could say it is open, and nobody would come back to it
        self.ready.later(gate)
    }

    fn start(&mut self, batch: Batch) {
        let Batch { destination, shares } = batch;
        self.count_late_copies(&shares);
        let mut sent = Vec::new();
        let tails = shares.into_iter().map(|share| share.depart(&mut sent)).collect();
        metrics::request(sent.len());
        let departure = self.breakers.departs(&destination, self.publisher.as_ref(), Instant::now());
        let publisher = Arc::clone(&self.publisher);
        let timeout = self.config.publish_timeout;
        self.requests.spawn(async move {
            // the whole of it, for a future may also panic where the timeout drops it
            let publish =
                AssertUnwindSafe(async { tokio::time::timeout(timeout, publisher.publish(&destination, &sent)).await });
            let reply = match publish.catch_unwind().await {
                Ok(Ok(outcomes)) => Reply::Outcomes(outcomes),
                Ok(Err(_elapsed)) => Reply::TimedOut,
                Err(_panic) => Reply::Panicked,
            };
            Landed { destination, departure, sent, tails, reply }
        });
    }

    /// Counts messages whose first try SQS may have forgotten by now.
    fn count_late_copies(&self, shares: &[Share]) {
        let now = Instant::now();
        let start_within = self.config.start_within();
        let late = shares.iter().map(|Share { messages, lane }| {
            let since_claim = start_within.saturating_sub(lane.start_by() - now);
            let is_late = |tried: Duration| tried + since_claim > DEDUPLICATION_WINDOW;
            messages.iter().filter(|held| held.message.first_tried.is_some_and(is_late)).count()
        });
        metrics::dedup_window_exceeded(late.sum());
    }

    async fn land(&mut self, landed: Landed) {
        let Landed { destination, departure, sent, tails, reply } = landed;
        self.ready.landed(&destination);
        let outcomes = match reply {
            Reply::Outcomes(outcomes) if outcomes.len() == sent.len() => outcomes,
            Reply::Outcomes(outcomes) => {
                let error = format!("the publisher gave {} outcomes for {} messages", outcomes.len(), sent.len());
                vec![Outcome::Unclassified { error }; sent.len()]
            }
            Reply::Panicked => vec![Outcome::Unclassified { error: "the publisher panicked".into() }; sent.len()],
            Reply::TimedOut => {
                let timeout = humantime::format_duration(self.config.publish_timeout);
                vec![
                    Outcome::TimedOut { error: format!("no answer within the publish timeout of {timeout}") };
                    sent.len()
                ]
            }
        };
        let outcomes = self.blame(&destination, departure, &sent, outcomes);
        let wait = self.note(&destination, departure, &outcomes).await;
        let mut answers = sent.into_iter().zip(outcomes);
        for tail in tails {
            let (tried, lane) = tail.meet(&mut answers);
            match self.conclude(tried, lane, wait).await {
                Ended::Advances(lane) => self.accept(lane).await,
                Ended::Waits(lane) => self.ready.push_front(&destination, lane),
                Ended::Over => {}
            }
        }
    }

    /// Decides whose fault a timeout is.
    fn blame(
        &mut self,
        destination: &Destination,
        departure: Departure,
        sent: &[Message],
        outcomes: Vec<Outcome>,
    ) -> Vec<Outcome> {
        let publisher = self.publisher.as_ref();
        let counts = if outcomes.iter().any(|outcome| matches!(outcome, Outcome::TimedOut { .. })) {
            self.breakers.count(destination, publisher, true)
        } else if outcomes.iter().any(is_published) {
            self.breakers.count(destination, publisher, false)
        } else {
            departure.counts
        };
        let before = (departure.started, departure.counts);
        let blamed = sent.iter().zip(outcomes).map(|(message, outcome)| match outcome {
            Outcome::TimedOut { error } if self.suspects.hung(message.id, sent.len() == 1, before, counts) => {
                Outcome::Backoff { error }
            }
            Outcome::TimedOut { error } => Outcome::Unavailable { trouble: Trouble::Timeout, error },
            outcome => {
                self.suspects.acquit(message.id);
                outcome
            }
        });
        blamed.collect()
    }

    /// Tells the breaker what came back. Returns how long a message waits that the destination did not take.
    async fn note(&mut self, destination: &Destination, departure: Departure, outcomes: &[Outcome]) -> Duration {
        let (landing, error) = landing(outcomes);
        let publisher = self.publisher.as_ref();
        let turn = self.breakers.lands(destination, publisher, departure, landing, error);
        match turn {
            Some(Turn::Opened | Turn::StaysOpen) => {
                self.summary.outages += u64::from(turn == Some(Turn::Opened));
                for lane in self.ready.take_of(destination) {
                    self.release_all(lane).await;
                }
            }
            Some(Turn::Closed) => self.wakeup.wake(),
            None => {}
        }
        if self.breakers.is_open(destination, self.publisher.as_ref()) {
            // due at once: the breaker holds it back
            Duration::ZERO
        } else {
            self.config.patience.backoff.base
        }
    }

    /// Sends the verdicts on what a lane had in one request, in order.
    async fn conclude(&mut self, mut tried: Vec<Tried>, mut lane: Lane, wait: Duration) -> Ended {
        let answers: Vec<_> = tried.iter().map(|tried| (&tried.message, &tried.outcome)).collect();
        self.summary.order_gaps += gap::report(&answers);
        let throttled = tried.len() - throttled_end(&tried);
        if throttled > 0 {
            // asked to wait, it waits here: handing it back and claiming it again would cost two writes
            lane.put_back(tried.split_off(tried.len() - throttled).into_iter().map(Tried::into_held).collect());
        }
        let goes_on = tried.iter().all(Tried::is_published) && !lane.is_empty();
        let mut unbroken = true;
        for tried in tried {
            let published = tried.is_published();
            match tried {
                Tried { message, permit, outcome: Outcome::Untried } if !unbroken => {
                    self.release(Held { message, permit }).await;
                }
                tried => self.judge(tried, wait, !goes_on).await,
            }
            unbroken &= published;
        }
        match goes_on {
            true if throttled > 0 => Ended::Waits(lane),
            true => Ended::Advances(lane),
            false => {
                self.release_all(lane).await;
                Ended::Over
            }
        }
    }

    /// Sends one message's verdict on.
    async fn judge(&mut self, tried: Tried, wait: Duration, ends_lane: bool) {
        let Tried { message, permit, outcome } = tried;
        let outcome = match outcome {
            // handed back it would be claimed and come back like this again at once, for ever
            Outcome::Untried => Outcome::Unclassified {
                error: "the publisher did not send it, although no message of its aggregate before it failed".into(),
            },
            outcome => outcome,
        };
        let unavailable = matches!(outcome, Outcome::Unavailable { .. });
        metrics::outcome(outcome.class());
        if let Outcome::Unclassified { error } = &outcome {
            tracing::error!(
                id = message.id,
                aggregate_id = message.aggregate_id,
                error,
                "unclassified failure; the row is left to its lease"
            );
        }
        match self.config.patience.verdict(&message, outcome, wait) {
            None => {
                self.summary.unclassified += 1;
                drop(permit);
            }
            Some(verdict) => {
                match &verdict {
                    Verdict::Done { .. } => self.summary.published += 1,
                    Verdict::Backoff { .. } => self.summary.backoff += 1,
                    Verdict::Defer { .. } if unavailable => self.summary.unavailable += 1,
                    Verdict::Defer { .. } => self.summary.deferred += 1,
                    Verdict::Dead { error } => {
                        self.summary.dead += 1;
                        tracing::error!(
                            id = message.id,
                            aggregate_id = message.aggregate_id,
                            attempts = message.attempts,
                            error,
                            "message is dead; its aggregate is gated until a person decides"
                        );
                    }
                }
                let finalize = Finalize { ends_lane, ..Finalize::new(&message, verdict) };
                self.finish(Finish::verdict(finalize, permit)).await;
            }
        }
    }

    /// Hands back what was not tried.
    async fn release(&mut self, held: Held) {
        let Held { message, permit } = held;
        self.summary.released += 1;
        self.finish(Finish::release(&message, permit)).await;
    }

    async fn release_all(&mut self, lane: Lane) {
        for held in lane.into_untried() {
            self.release(held).await;
        }
    }

    async fn finish(&self, finish: Finish) {
        // The finalizer ends only after this stage, or when both are aborted.
        if self.finishes.send(finish).await.is_err() {
            tracing::error!("the finalizer is gone; a row is left to its lease");
        }
    }
}
