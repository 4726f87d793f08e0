//! The dispatcher's settings, as the command line says them. Defaults are the library's.

use clap::Args;
use ordered_outbox::DispatcherConfig;
use ordered_outbox::backoff::Backoff;
use ordered_outbox::outcome::Patience;

use crate::values::{Span, not_blank};

/// The library's default of one setting.
fn default<T>(setting: impl FnOnce(DispatcherConfig) -> T) -> T {
    setting(DispatcherConfig::default())
}

/// How to dispatch.
#[derive(Args, Debug)]
#[command(next_help_heading = "Dispatching (durations like 500ms, 60s, 15m, 24h)")]
pub(crate) struct SettingsArgs {
    /// Name in `lease_owner`, for people [default: HOSTNAME-PID]
    #[arg(long, env = "OUTBOX_OWNER", hide_env_values = true, value_name = "NAME", value_parser = not_blank)]
    owner: Option<String>,
    /// How long claimed messages are this dispatcher's, 2s to 150s
    #[arg(long, env = "OUTBOX_LEASE", hide_env_values = true, value_name = "DURATION", allow_hyphen_values = true)]
    #[arg(value_parser = Span::positive, default_value_t = Span(default(|c| c.lease)))]
    lease: Span,
    /// How long a publish request may take; at most half of the lease
    #[arg(long, env = "OUTBOX_PUBLISH_TIMEOUT", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = Span::positive, default_value_t = Span(default(|c| c.publish_timeout)), allow_hyphen_values = true)]
    pub(crate) publish_timeout: Span,
    /// Most messages of one claim, 1 to 10000
    #[arg(long, env = "OUTBOX_BATCH_SIZE", hide_env_values = true, value_name = "MESSAGES")]
    #[arg(default_value_t = default(|c| c.batch_size))]
    batch_size: u32,
    /// Most bytes of payload and headers in one claim; twice as many are held at the most
    #[arg(long, env = "OUTBOX_BATCH_BYTES", hide_env_values = true, value_name = "BYTES")]
    #[arg(default_value_t = default(|c| c.batch_bytes))]
    batch_bytes: u32,
    /// Most messages of one aggregate in one claim; they are sent in order
    #[arg(long, env = "OUTBOX_RUN_LENGTH", hide_env_values = true, value_name = "MESSAGES")]
    #[arg(default_value_t = default(|c| c.run_length))]
    run_length: u32,
    /// Most messages of one aggregate in one request, 1 to 10; 1 keeps strict order, more risks gaps in it
    #[arg(long, env = "OUTBOX_GROUP_BATCHING", hide_env_values = true, value_name = "MESSAGES")]
    #[arg(default_value_t = default(|c| c.group_batching))]
    group_batching: u32,
    /// Most publish requests in flight
    #[arg(long, env = "OUTBOX_CONCURRENCY", hide_env_values = true, value_name = "REQUESTS")]
    #[arg(default_value_t = default(|c| c.concurrency))]
    concurrency: u32,
    /// Longest time between two looks for due messages when there were none
    #[arg(long, env = "OUTBOX_POLL_INTERVAL", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = Span::positive, default_value_t = Span(default(|c| c.poll_interval)), allow_hyphen_values = true)]
    poll_interval: Span,
    /// Attempts after which a failing message is dead
    #[arg(long, env = "OUTBOX_MAX_ATTEMPTS", hide_env_values = true, value_name = "ATTEMPTS")]
    #[arg(default_value_t = default(|c| c.patience.max_attempts))]
    max_attempts: u32,
    /// Longest wait after the first attempt, doubled by each further one
    #[arg(long, env = "OUTBOX_BACKOFF_BASE", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = Span::positive, default_value_t = Span(default(|c| c.patience.backoff.base)), allow_hyphen_values = true)]
    backoff_base: Span,
    /// Longest wait between two attempts
    #[arg(long, env = "OUTBOX_BACKOFF_CAP", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = Span::positive, default_value_t = Span(default(|c| c.patience.backoff.cap)), allow_hyphen_values = true)]
    backoff_cap: Span,
    /// Age after which a deferred message is dead
    #[arg(long, env = "OUTBOX_MAX_DEFER_AGE", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = Span::positive, default_value_t = Span(default(|c| c.patience.max_defer_age)), allow_hyphen_values = true)]
    max_defer_age: Span,
    /// Longest pause before a destination that is down is tried again, doubled by each failed try
    #[arg(long, env = "OUTBOX_BREAKER_BASE", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = Span::positive, default_value_t = Span(default(|c| c.breaker.base)), allow_hyphen_values = true)]
    breaker_base: Span,
    /// Longest pause between two tries of a destination that is down
    #[arg(long, env = "OUTBOX_BREAKER_CAP", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = Span::positive, default_value_t = Span(default(|c| c.breaker.cap)), allow_hyphen_values = true)]
    breaker_cap: Span,
    /// How long a stop waits for requests in flight and for the database
    #[arg(long, env = "OUTBOX_SHUTDOWN_GRACE", hide_env_values = true, value_name = "DURATION")]
    #[arg(value_parser = Span::any, default_value_t = Span(default(|c| c.shutdown_grace)), allow_hyphen_values = true)]
    shutdown_grace: Span,
}

impl SettingsArgs {
    /// The settings; not validated yet.
    pub(crate) fn config(self) -> DispatcherConfig {
        DispatcherConfig {
            owner: self.owner.unwrap_or_else(default_owner),
            batch_size: self.batch_size,
            batch_bytes: self.batch_bytes,
            run_length: self.run_length,
            group_batching: self.group_batching,
            concurrency: self.concurrency,
            lease: self.lease.0,
            publish_timeout: self.publish_timeout.0,
            poll_interval: self.poll_interval.0,
            patience: Patience {
                max_attempts: self.max_attempts,
                max_defer_age: self.max_defer_age.0,
                backoff: Backoff { base: self.backoff_base.0, cap: self.backoff_cap.0 },
            },
            breaker: Backoff { base: self.breaker_base.0, cap: self.breaker_cap.0 },
            shutdown_grace: self.shutdown_grace.0,
        }
    }
}

/// Tells people which process of which machine holds a lease.
fn default_owner() -> String {
    // shells know HOSTNAME but seldom export it
    let host = std::env::var("HOSTNAME").or_else(|_| std::fs::read_to_string("/proc/sys/kernel/hostname"));
    let host = host.unwrap_or_default();
    let host = host.trim();
    format!("{}-{}", if host.is_empty() { "outbox" } else { host }, std::process::id())
}
