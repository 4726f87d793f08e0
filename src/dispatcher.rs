//! The dispatcher: claim, publish, finalize, each a stage of its own, and every stage bounded.
//!
//! Invariants, which the stages rest on:
//!
//! * Every claimed row has its part of the capacity, a row and its bytes, until it has left `processing` or was given up to
//!   its lease. The claimer takes that before it claims, so no stage ever holds more, and no channel fills up.
//! * A row belongs to one lane, a lane to one stage. A lane has at most one request in flight, and in it one message,
//!   or up to `group_batching` consecutive ones.
//! * Stages end in order: the claimer drops its channel, the publish stage empties and drops its own, the finalizer
//!   writes the rest. Ending any other way leaves rows to their lease, never in doubt.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::{ConfigError, DispatcherConfig, MIN_CONNECTIONS};
use crate::publisher::Publisher;
use crate::store::Store;

mod aside;
mod breaker;
mod breakers;
mod capacity;
mod claimer;
mod cursor;
mod finalizer;
mod gap;
mod lane;
mod maintenance;
mod pace;
mod parker;
mod publish;
mod ready;
mod share;
mod suspects;
mod wakeup;

use breakers::Breakers;
use capacity::Capacity;
use claimer::Claimer;
use finalizer::Finalizer;
use parker::Parker;
use publish::PublishStage;
use wakeup::Wakeup;

/// Moves committed rows of one outbox to a publisher. Any number of them may run on one outbox.
#[derive(Debug)]
pub struct Dispatcher<P> {
    store: Store,
    publisher: P,
    config: DispatcherConfig,
}

/// Why a dispatcher ended badly. Rows it held are left to their lease; nothing is lost.
#[derive(Debug, thiserror::Error)]
pub enum DispatcherError {
    /// The broker or the database did not answer in time after the stop.
    #[error(
        "not everything in flight could be finalized within the shutdown grace of {}: the rest goes again when its \
         lease ends",
        humantime::format_duration(*.0)
    )]
    GraceExceeded(Duration),
    /// A stage panicked.
    #[error("a stage of the dispatcher failed, which is a bug: {0}")]
    Panicked(#[from] JoinError),
}

/// What a dispatcher did, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Claimed, repeats included.
    pub claimed: u64,
    /// Confirmed by the broker.
    pub published: u64,
    /// Backed off, attempt spent.
    pub backoff: u64,
    /// Deferred, attempt refunded.
    pub deferred: u64,
    /// Declared dead.
    pub dead: u64,
    /// Handed back untried, attempt refunded.
    pub released: u64,
    /// Offered to a destination that was unavailable, attempt refunded.
    pub unavailable: u64,
    /// How often a destination became unavailable: openings of breakers.
    pub outages: u64,
    /// Left to their lease.
    pub unclassified: u64,
    /// Taken over before they could be finalized or handed back.
    pub lease_lost: u64,
    /// Heads found parked with nothing in front of them, and made ready: left by a change by hand.
    pub stranded: u64,
    /// Not accepted in a request in which a later one of the same aggregate was: an order gap. Zero without group
    /// batching.
    pub order_gaps: u64,
}

/// What a stage reports when it ends.
enum Ended {
    Claimer(u64),
    Publish(Summary),
    Finalizer(u64),
}

impl<P: Publisher> Dispatcher<P> {
    /// A dispatcher that has not started.
    ///
    /// # Errors
    /// A setting is unusable; see [`DispatcherConfig::validate`]. Or the store's pool has fewer than 3 connections.
    pub fn new(store: Store, publisher: P, config: DispatcherConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let connections = store.pool().options().get_max_connections();
        if connections < MIN_CONNECTIONS {
            return Err(ConfigError::Connections(connections));
        }
        Ok(Self { store, publisher, config })
    }

    /// Dispatches until `stop` is cancelled, then ends gracefully: what is in flight is finished, what was not tried
    /// is handed back with its attempt refunded.
    ///
    /// Trouble of the database or the broker does not end it; it waits and goes on.
    ///
    /// # Errors
    /// The grace period ended first, or a stage panicked.
    pub async fn run(self, stop: CancellationToken) -> Result<Summary, DispatcherError> {
        self.dispatch(stop, false).await
    }

    /// Dispatches until nothing due is left, or until `stop` is cancelled, which ends it as [`run`](Self::run) does.
    ///
    /// Rows that are not due yet, wait behind a gate, or are held by another dispatcher are not waited for. Due rows whose
    /// destination is down are.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn drain(self, stop: CancellationToken) -> Result<Summary, DispatcherError> {
        self.dispatch(stop, true).await
    }

    async fn dispatch(self, stop: CancellationToken, drain: bool) -> Result<Summary, DispatcherError> {
        let Self { store, publisher, config } = self;
        // More than the rows that are held at a time; see the capacity.
        let capacity = config.batch_size * 4;
        let wakeup = Arc::new(Wakeup::new(config.poll_interval));
        let (lane_sender, lanes) = mpsc::channel(capacity as usize);
        let (finish_sender, finishes) = mpsc::channel(capacity as usize);
        let (claimer_stop, publish_stop, maintenance_stop) = (stop.clone(), stop.clone(), stop.child_token());
        let maintenance =
            tokio::spawn(maintenance::run(store.clone(), config.patience.max_attempts, maintenance_stop.clone()));
        let parker = Arc::new(Parker::new(store.clone()));
        tokio::spawn(Arc::clone(&parker).park(maintenance_stop.clone()));
        tokio::spawn(Arc::clone(&parker).sweep(Arc::clone(&wakeup), maintenance_stop.clone()));
        let _maintenance_ends: DropGuard = maintenance_stop.drop_guard();

        let breakers = Arc::new(Breakers::new(config.breaker, config.concurrency));
        let claimer = Claimer {
            session: store.session(),
            config: config.clone(),
            capacity: Capacity::new(config.batch_size, config.batch_bytes),
            wakeup: Arc::clone(&wakeup),
            parker: Arc::clone(&parker),
            breakers: Arc::clone(&breakers),
            lanes: lane_sender,
            drain,
        };
        let publish = PublishStage::new(publisher, config.clone(), finish_sender, breakers, Arc::clone(&wakeup));
        let finalizer = Finalizer { session: store.session(), wakeup, batch_size: config.batch_size };
        // Dropping the set aborts the stages: no way out of here leaves one running.
        let mut stages = JoinSet::new();
        stages.spawn(async move { Ended::Claimer(claimer.run(claimer_stop).await) });
        stages.spawn(async move { Ended::Publish(publish.run(lanes, publish_stop).await) });
        stages.spawn(async move { Ended::Finalizer(finalizer.run(finishes).await) });

        let summary = tokio::select! {
            summary = join(&mut stages) => summary?,
            () = grace(&stop, config.shutdown_grace) => {
                maintenance.abort();
                return Err(DispatcherError::GraceExceeded(config.shutdown_grace));
            }
        };
        Ok(Summary { stranded: parker.stranded(), ..summary })
    }
}

/// Waits for every stage; the first panic ends the wait.
async fn join(stages: &mut JoinSet<Ended>) -> Result<Summary, DispatcherError> {
    let mut summary = Summary::default();
    let (mut claimed, mut lease_lost) = (0, 0);
    while let Some(ended) = stages.join_next().await {
        match ended? {
            Ended::Claimer(rows) => claimed = rows,
            Ended::Publish(published) => summary = published,
            Ended::Finalizer(rows) => lease_lost = rows,
        }
    }
    Ok(Summary { claimed, lease_lost, ..summary })
}

async fn grace(stop: &CancellationToken, grace: Duration) {
    stop.cancelled().await;
    tokio::time::sleep(grace).await;
}
