//! How a dispatcher works, and what it refuses to work with.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::check::Check;
use crate::outcome::Patience;

/// SQS FIFO drops a copy of a message for this long after it accepted the first. Source: the SQS developer guide,
/// "Using the message deduplication ID".
pub const DEDUPLICATION_WINDOW: Duration = Duration::from_mins(5);

/// Longest lease: half the deduplication window. A worker that stalls sends at the latest when its lease ends; its
/// successor has sent by then or does so at once, and the copy must still be dropped (P9).
pub const MAX_LEASE: Duration = Duration::from_secs(150);

/// Shortest lease. With a publish timeout of at most half of it, at least 500 ms are left for claimed rows to wait in.
pub const MIN_LEASE: Duration = Duration::from_secs(2);

/// Time kept free at the end of a lease for the finalize.
pub const FINALIZE_MARGIN: Duration = Duration::from_millis(500);

/// Most rows one claim may take.
pub const MAX_BATCH_SIZE: u32 = 10_000;

/// Most bytes one claim may take.
pub const MAX_BATCH_BYTES: u32 = 1 << 30;

/// Most messages of one aggregate in one request: as many as a `SendMessageBatch` request has entries.
pub const MAX_GROUP_BATCHING: u32 = 10;

/// Fewest connections of a pool. One is kept to claim, one to write results, and the rest is for maintenance, parking and
/// sweeping.
pub(crate) const MIN_CONNECTIONS: u32 = 3;

/// Settings of a [`Dispatcher`](crate::Dispatcher).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatcherConfig {
    /// Name in `lease_owner`, for people. Default `outbox`.
    pub owner: String,
    /// Most rows of one claim, 1 to 10,000. Default 100. Up to three times as many are held at a time.
    pub batch_size: u32,
    /// Most bytes of payload and headers in one claim, at least 1. Default 16 MiB. Up to twice as many are held at a
    /// time; a message larger than that by itself is taken alone.
    pub batch_bytes: u32,
    /// Most rows of one aggregate in one claim, at least 1. Default 50. They are sent in order.
    pub run_length: u32,
    /// Most consecutive messages of one aggregate in one request, 1 to 10. Default 1: strictly one after the other.
    ///
    /// More trades P2 for throughput of a hot aggregate: if the broker refuses an earlier one of them and accepts a
    /// later one, there is an order gap. It is logged and counted, and the earlier one goes before anything new.
    pub group_batching: u32,
    /// Most publish requests in flight, at least 1. Default 16.
    pub concurrency: u32,
    /// How long claimed rows are this dispatcher's. Default 60 s; 2 s to 150 s.
    pub lease: Duration,
    /// How long a publish request may take. Default 10 s; at most half the lease.
    pub publish_timeout: Duration,
    /// Longest time between two looks for due rows when there were none. Default 1 s; jittered down to half.
    pub poll_interval: Duration,
    /// When a failing message is given up.
    pub patience: Patience,
    /// Pauses between two tries of a destination that is down: nothing is claimed for it meanwhile. Each is drawn evenly
    /// from zero to a ceiling that begins at `base` and doubles up to `cap`. Default 1 s and 30 s. An outage that is over
    /// is noticed within `cap` and a publish timeout.
    pub breaker: Backoff,
    /// How long a shutdown waits for requests in flight and for the database. Default 30 s.
    pub shutdown_grace: Duration,
}

impl Default for DispatcherConfig {
    fn default() -> Self {
        Self {
            owner: "outbox".to_owned(),
            batch_size: 100,
            batch_bytes: 16 << 20,
            run_length: 50,
            group_batching: 1,
            concurrency: 16,
            lease: Duration::from_mins(1),
            publish_timeout: Duration::from_secs(10),
            poll_interval: Duration::from_secs(1),
            patience: Patience::default(),
            breaker: Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(30) },
            shutdown_grace: Duration::from_secs(30),
        }
    }
}

/// A setting that a dispatcher refuses to start with. Each sentence names the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Zero, or far too many.
    #[error("batch size {0} is not usable: choose 1 to {MAX_BATCH_SIZE} rows")]
    BatchSize(u32),
    /// Zero, or far too many.
    #[error("batch bytes {0} is not usable: choose 1 to {MAX_BATCH_BYTES} bytes, for example 16777216 (16 MiB)")]
    BatchBytes(u32),
    /// Zero.
    #[error("{0} is 0: choose 1 or more")]
    Zero(&'static str),
    /// Zero, or more than a request can carry.
    #[error(
        "group batching {0} is not usable: choose 1 to keep strict order, or up to {MAX_GROUP_BATCHING} messages of \
         an aggregate in one request"
    )]
    GroupBatching(u32),
    /// A publish could outlive the lease it runs under, or leave no time to wait for a free request.
    #[error(
        "publish timeout {} is not well under the lease {}: choose at most half of it, for example 10s and 60s",
        humantime::format_duration(*publish_timeout),
        humantime::format_duration(*lease)
    )]
    PublishTimeout {
        /// As given.
        publish_timeout: Duration,
        /// As given.
        lease: Duration,
    },
    /// No time would be left between the publish timeout and the end of the lease.
    #[error("lease {} is too short: choose 2s or more, for example 60s", humantime::format_duration(*.0))]
    LeaseTooShort(Duration),
    /// A stalled worker's late copy could reach SQS after it forgot the first.
    #[error(
        "lease {} is not far below the 5 minutes for which SQS drops copies: choose 150s or less",
        humantime::format_duration(*.0)
    )]
    Lease(Duration),
    /// Claims and results would leave none to maintenance.
    #[error(
        "a pool of {0} connections is too small: one claims, one writes results, and maintenance needs one; choose 3 or more"
    )]
    Connections(u32),
}

impl ConfigError {
    const fn is_of_the_lease(&self) -> bool {
        matches!(self, Self::PublishTimeout { .. } | Self::LeaseTooShort(_) | Self::Lease(_))
    }
}

impl DispatcherConfig {
    /// How long after a claim was sent a publish may start at the latest: it must not outlive the lease (P6).
    pub(crate) const fn start_within(&self) -> Duration {
        self.lease.saturating_sub(self.publish_timeout).saturating_sub(FINALIZE_MARGIN)
    }

    /// Checks what would break a promise later.
    ///
    /// # Errors
    /// The first setting found unusable; [`problems`](Self::problems) has them all.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.problems().into_iter().next().map_or(Ok(()), Err)
    }

    /// Every setting that is not usable.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigError> {
        let mut problems = Vec::new();
        if !(1..=MAX_BATCH_SIZE).contains(&self.batch_size) {
            problems.push(ConfigError::BatchSize(self.batch_size));
        }
        if !(1..=MAX_BATCH_BYTES).contains(&self.batch_bytes) {
            problems.push(ConfigError::BatchBytes(self.batch_bytes));
        }
        for (name, zero) in [
            ("run length", self.run_length == 0),
            ("concurrency", self.concurrency == 0),
            ("max attempts", self.patience.max_attempts == 0),
            ("poll interval", self.poll_interval.is_zero()),
            ("publish timeout", self.publish_timeout.is_zero()),
            ("breaker base", self.breaker.base.is_zero()),
            ("breaker cap", self.breaker.cap.is_zero()),
        ] {
            if zero {
                problems.push(ConfigError::Zero(name));
            }
        }
        if !(1..=MAX_GROUP_BATCHING).contains(&self.group_batching) {
            problems.push(ConfigError::GroupBatching(self.group_batching));
        }
        if self.lease < MIN_LEASE {
            problems.push(ConfigError::LeaseTooShort(self.lease));
        }
        if self.publish_timeout > self.lease / 2 {
            problems.push(ConfigError::PublishTimeout { publish_timeout: self.publish_timeout, lease: self.lease });
        }
        if self.lease > MAX_LEASE {
            problems.push(ConfigError::Lease(self.lease));
        }
        problems
    }

    /// The settings as checks: `lease`, and `settings` for all else. Every problem is one of its own.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let (lease, settings): (Vec<_>, Vec<_>) = self.problems().into_iter().partition(ConfigError::is_of_the_lease);
        let times = [self.publish_timeout, self.lease, DEDUPLICATION_WINDOW].map(humantime::format_duration);
        let [publish_timeout, lease_time, window] = times;
        let in_order = format!("publish timeout {publish_timeout}, lease {lease_time}, SQS drops copies for {window}");
        let most = format!("{} rows a claim, {} requests in flight", self.batch_size, self.concurrency);
        [("lease", lease, in_order), ("settings", settings, most)]
            .into_iter()
            .flat_map(|(name, problems, fine)| match problems.as_slice() {
                [] => vec![Check::ok(name, fine)],
                problems => problems.iter().map(|problem| Check::problem(name, problem)).collect(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::State;

    fn refused(change: impl FnOnce(&mut DispatcherConfig)) -> String {
        let mut config = DispatcherConfig::default();
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_are_accepted() {
        assert_eq!(DispatcherConfig::default().validate(), Ok(()));
    }

    #[test]
    fn every_unusable_setting_is_a_problem_of_its_own_and_the_lease_is_told_apart() {
        let mut config = DispatcherConfig { batch_size: 0, concurrency: 0, ..DispatcherConfig::default() };
        config.lease = Duration::from_mins(4);
        config.publish_timeout = Duration::from_mins(3);
        let found: Vec<_> = config.checks().into_iter().map(|check| (check.name, check.state)).collect();
        let problem = |name| (name, State::Problem);
        assert_eq!(found, [problem("lease"), problem("lease"), problem("settings"), problem("settings")]);

        let fine: Vec<_> = DispatcherConfig::default().checks().into_iter().map(|check| check.finding).collect();
        assert_eq!(
            fine,
            ["publish timeout 10s, lease 1m, SQS drops copies for 5m", "100 rows a claim, 16 requests in flight"]
        );
    }

    // P2
    #[test]
    fn the_default_sends_one_message_of_an_aggregate_at_a_time_and_ten_is_the_most() {
        assert_eq!(DispatcherConfig::default().group_batching, 1);
        let most = DispatcherConfig { group_batching: MAX_GROUP_BATCHING, ..DispatcherConfig::default() };
        assert_eq!(most.validate(), Ok(()));
    }

    #[test]
    fn each_unusable_setting_is_refused_with_its_remedy() {
        insta::assert_snapshot!(
            [
                refused(|c| c.batch_size = 0),
                refused(|c| c.batch_size = 10_001),
                refused(|c| c.batch_bytes = 0),
                refused(|c| c.batch_bytes = (1 << 30) + 1),
                refused(|c| c.run_length = 0),
                refused(|c| c.concurrency = 0),
                refused(|c| c.patience.max_attempts = 0),
                refused(|c| c.breaker.base = Duration::ZERO),
                refused(|c| c.breaker.cap = Duration::ZERO),
                refused(|c| c.group_batching = 0),
                refused(|c| c.group_batching = 11),
                refused(|c| c.publish_timeout = c.lease),
                refused(|c| c.publish_timeout = c.lease / 2 + Duration::from_millis(1)),
                refused(|c| c.lease = Duration::from_millis(1_999)),
                refused(|c| c.lease = Duration::from_secs(151)),
            ]
            .join("\n"),
            @r"
        batch size 0 is not usable: choose 1 to 10000 rows
        batch size 10001 is not usable: choose 1 to 10000 rows
        batch bytes 0 is not usable: choose 1 to 1073741824 bytes, for example 16777216 (16 MiB)
        batch bytes 1073741825 is not usable: choose 1 to 1073741824 bytes, for example 16777216 (16 MiB)
        run length is 0: choose 1 or more
        concurrency is 0: choose 1 or more
        max attempts is 0: choose 1 or more
        breaker base is 0: choose 1 or more
        breaker cap is 0: choose 1 or more
        group batching 0 is not usable: choose 1 to keep strict order, or up to 10 messages of an aggregate in one request
        group batching 11 is not usable: choose 1 to keep strict order, or up to 10 messages of an aggregate in one request
        publish timeout 1m is not well under the lease 1m: choose at most half of it, for example 10s and 60s
        publish timeout 30s 1ms is not well under the lease 1m: choose at most half of it, for example 10s and 60s
        lease 1s 999ms is too short: choose 2s or more, for example 60s
        lease 2m 31s is not far below the 5 minutes for which SQS drops copies: choose 150s or less
        "
        );
    }
}
