//! Full jitter: after an outage, waiting messages come back spread out and not as one wave.

use std::time::Duration;

use rand::RngExt as _;

/// Bounds of the wait between two attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Doubled by every attempt: the wait after attempt n is at most `base * 2^n`. Default 1 s.
    pub base: Duration,
    /// Upper bound of every wait. Default 300 s.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), cap: Duration::from_mins(5) }
    }
}

impl Backoff {
    /// The longest wait after `attempt` failures: `min(cap, base * 2^attempt)`, for any `attempt`.
    #[must_use]
    pub fn ceiling(&self, attempt: u32) -> Duration {
        2u32.checked_pow(attempt)
            .and_then(|factor| self.base.checked_mul(factor))
            .map_or(self.cap, |wait| wait.min(self.cap))
    }

    /// A wait drawn evenly from zero to [`ceiling`](Self::ceiling).
    ///
    /// Source: "Exponential Backoff And Jitter", AWS Architecture Blog, the variant named Full Jitter.
    #[must_use]
    pub fn full_jitter(&self, attempt: u32) -> Duration {
        jitter(self.ceiling(attempt))
    }
}

/// A wait drawn evenly from zero to `ceiling`.
#[must_use]
pub fn jitter(ceiling: Duration) -> Duration {
    ceiling.mul_f64(rand::rng().random_range(0.0..=1.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_ceiling_doubles_until_the_cap() {
        let backoff = Backoff::default();
        let seconds: Vec<u64> = (0..11).map(|attempt| backoff.ceiling(attempt).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }

    // C26
    #[test]
    fn no_attempt_count_overflows() {
        let backoff = Backoff::default();
        for attempt in [31, 32, 63, 64, 65, 1_000, i32::MAX as u32, u32::MAX] {
            assert_eq!(backoff.ceiling(attempt), backoff.cap, "attempt {attempt}");
        }
        let without_base = Backoff { base: Duration::ZERO, ..backoff };
        assert_eq!(without_base.ceiling(3), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn a_wait_is_never_longer_than_its_ceiling(attempt: u32, base_ms in 0u64..100_000, cap_ms in 0u64..1_000_000) {
            let backoff = Backoff { base: Duration::from_millis(base_ms), cap: Duration::from_millis(cap_ms) };
            prop_assert!(backoff.full_jitter(attempt) <= backoff.ceiling(attempt));
            prop_assert!(backoff.ceiling(attempt) <= backoff.cap);
        }
    }

    #[test]
    fn waits_are_spread_over_the_whole_range() {
        let backoff = Backoff::default();
        let waits: Vec<f64> = (0..2_000).map(|_| backoff.full_jitter(9).as_secs_f64()).collect();
        for third in [0.0..100.0, 100.0..200.0, 200.0..300.0] {
            let share = waits.iter().filter(|wait| third.contains(*wait)).count();
            assert!((500..850).contains(&share), "{share} of 2000 waits fall into {third:?}");
        }
    }
}
