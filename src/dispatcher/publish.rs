//! The publish stage: fills requests with the heads of lanes, and turns outcomes into verdicts.
//!
//! Continuous batching: a request goes out as soon as a destination has a free slot and a lane waits, with as many
//! heads as are ready then. Under load the slots are taken and requests fill up; idle, a message does not wait for
//! company. No aggregate has two requests in flight, and no request holds two messages of one aggregate (P2), unless
//! group batching allows some: then what heads leave free is filled with the messages right behind them.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Summary;
use super::finalizer::Finish;
use super::gap;
use super::lane::{Held, Lane};
use super::ready::{Batch, Ready};
use super::share::{Tail, Tried};
use crate::config::DispatcherConfig;
use crate::message::Message;
use crate::metrics;
use crate::outcome::{Outcome, Verdict};
use crate::publisher::{Destination, Publisher};
use crate::store::Finalize;

/// Owns every lane between claim and finalize.
pub(super) struct PublishStage<P> {
    publisher: Arc<P>,
    config: DispatcherConfig,
    finishes: mpsc::Sender<Finish>,
    ready: Ready,
    requests: JoinSet<Landed>,
    health: HashMap<Destination, Health>,
    summary: Summary,
}

/// A request that came back.
struct Landed {
    destination: Destination,
    started: Instant,
    sent: Vec<Message>,
    tails: Vec<Tail>,
    reply: Reply,
}

enum Reply {
    Outcomes(Vec<Outcome>),
    TimedOut,
    Panicked,
}

/// What the last requests to a destination said about it.
#[derive(Default)]
struct Health {
    last_success: Option<Instant>,
    unavailable_since: Option<Instant>,
}

impl Health {
    fn has_succeeded_since(&self, start: Instant) -> bool {
        self.last_success.is_some_and(|success| success >= start)
    }

    /// How long the destination has been unavailable, as of these outcomes; zero if it is not.
    fn observe(&mut self, outcomes: &[Outcome], now: Instant) -> Duration {
        if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Published { .. })) {
            *self = Self { last_success: Some(now), unavailable_since: None };
        } else if outcomes.iter().any(|outcome| matches!(outcome, Outcome::Unavailable { .. })) {
            return now - *self.unavailable_since.get_or_insert(now);
        }
        Duration::ZERO
    }
}

impl<P: Publisher> PublishStage<P> {
    pub(super) fn new(publisher: P, config: DispatcherConfig, finishes: mpsc::Sender<Finish>) -> Self {
        Self {
            publisher: Arc::new(publisher),
            config,
            finishes,
            ready: Ready::default(),
            requests: JoinSet::new(),
            health: HashMap::new(),
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
            self.start_requests().await;
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
        let outage = message.age;
        let tried = vec![Tried { message, permit, outcome: Outcome::Unavailable { error } }];
        // an outcome that is not Published ends the lane
        let _ended = self.conclude(tried, lane, outage).await;
    }

    async fn start_requests(&mut self) {
        for lane in self.ready.take_too_late(Instant::now()) {
            tracing::warn!(id = lane.head().map(|head| head.id), "the lease is nearly over; handed back untried");
            self.release_all(lane).await;
        }
        let (concurrency, group_batching) = (self.config.concurrency as usize, self.config.group_batching as usize);
        while let Some(batch) = self.ready.take(self.publisher.as_ref(), concurrency, group_batching) {
            self.start(batch);
        }
    }

    fn start(&mut self, batch: Batch) {
        let Batch { destination, shares } = batch;
        let mut sent = Vec::new();
        let tails = shares.into_iter().map(|share| share.depart(&mut sent)).collect();
        metrics::request(sent.len());
        let publisher = Arc::clone(&self.publisher);
        let timeout = self.config.publish_timeout;
        self.requests.spawn(async move {
            let started = Instant::now();
            // the whole of it, for a future may also panic where the timeout drops it
            let publish =
                AssertUnwindSafe(async { tokio::time::timeout(timeout, publisher.publish(&destination, &sent)).await });
            let reply = match publish.catch_unwind().await {
                Ok(Ok(outcomes)) => Reply::Outcomes(outcomes),
                Ok(Err(_elapsed)) => Reply::TimedOut,
                Err(_panic) => Reply::Panicked,
            };
            Landed { destination, started, sent, tails, reply }
        });
    }

    async fn land(&mut self, landed: Landed) {
        let Landed { destination, started, sent, tails, reply } = landed;
        self.ready.landed(&destination);
        let health = self.health.entry(destination.clone()).or_default();
        let others_succeeded = health.has_succeeded_since(started);
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
        let outcomes: Vec<_> = outcomes.into_iter().map(|outcome| outcome.blame_timeout(others_succeeded)).collect();
        let outage = health.observe(&outcomes, Instant::now());
        if let Some(Outcome::Unavailable { error }) = outcomes.iter().find(|o| matches!(o, Outcome::Unavailable { .. }))
        {
            tracing::warn!(%destination, %error, since_seconds = outage.as_secs(), "destination unavailable; attempts refunded");
        }
        let mut answers = sent.into_iter().zip(outcomes);
        for tail in tails {
            let (tried, lane) = tail.meet(&mut answers);
            if let Some(lane) = self.conclude(tried, lane, outage).await {
                self.accept(lane).await;
            }
        }
    }

    /// Sends the verdicts on what a lane had in one request, in order. Returns the lane if that goes on; otherwise the
    /// rest of it was handed back.
    async fn conclude(&mut self, tried: Vec<Tried>, lane: Lane, outage: Duration) -> Option<Lane> {
        let answers: Vec<_> = tried.iter().map(|tried| (&tried.message, &tried.outcome)).collect();
        self.summary.order_gaps += gap::report(&answers);
        let goes_on = tried.iter().all(Tried::is_published) && !lane.is_empty();
        let mut unbroken = true;
        for tried in tried {
            let published = tried.is_published();
            match tried {
                Tried { message, permit, outcome: Outcome::Untried } if !unbroken => {
                    self.release(Held { message, permit }).await;
                }
                tried => self.judge(tried, outage, !goes_on).await,
            }
            unbroken &= published;
        }
        if goes_on {
            return Some(lane);
        }
        self.release_all(lane).await;
        None
    }

    /// Sends one message's verdict on.
    async fn judge(&mut self, tried: Tried, outage: Duration, ends_lane: bool) {
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
        match self.config.patience.verdict(&message, outcome, outage) {
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
