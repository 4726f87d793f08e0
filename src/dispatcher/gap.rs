//! An order gap: of one lane's messages in one request, a later one was accepted and an earlier one was not.
//!
//! Only group batching can make one. It cannot be undone, since the later message is in the queue: it can be told to
//! people, and the earlier one can go before anything new.

use crate::message::Message;
use crate::metrics;
use crate::outcome::Outcome;

/// Logs and counts every message that was overtaken; returns how many. `tried` is in the lane's order.
pub(super) fn report(tried: &[(&Message, &Outcome)]) -> u64 {
    let published = |outcome: &Outcome| matches!(outcome, Outcome::Published { .. });
    let mut gaps = 0;
    for (place, (message, outcome)) in tried.iter().enumerate().filter(|(_, (_, outcome))| !published(outcome)) {
        let later = tried[place..].iter().filter(|(_, outcome)| published(outcome));
        let later: Vec<_> = later.map(|(message, _)| message.id).collect();
        if later.is_empty() {
            break;
        }
        gaps += 1;
        metrics::order_gap();
        tracing::error!(
            id = message.id,
            aggregate_id = message.aggregate_id,
            outcome = outcome.class(),
            accepted_before_it = ?later,
            "order gap: the broker accepted later messages of this aggregate in the same request"
        );
    }
    gaps
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};

    use ::metrics::atomics::AtomicU64;
    use ::metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

    use super::super::lane::tests::held;
    use super::*;

    /// Counts order gaps and refuses to count anything else.
    #[derive(Default)]
    struct Gaps(Arc<AtomicU64>);

    impl Recorder for Gaps {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            assert_eq!(key.name(), "outbox_order_gaps_total");
            Counter::from_arc(Arc::clone(&self.0))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            panic!("{key}")
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            panic!("{key}")
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is returned, counted and logged where the messages 1, 2, 3 and so on of one lane end so.
    fn reported(outcomes: &[Outcome]) -> (u64, u64, Vec<String>) {
        let messages: Vec<_> = (1..).take(outcomes.len()).map(|id| held("order-7", id).message).collect();
        let tried: Vec<_> = messages.iter().zip(outcomes).collect();
        let (gaps, log) = (Gaps::default(), Log::default());
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().without_time().with_ansi(false).with_target(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        let returned =
            ::metrics::with_local_recorder(&gaps, || tracing::subscriber::with_default(subscriber, || report(&tried)));
        let lines = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        (returned, gaps.0.load(Ordering::Relaxed), lines.lines().map(|line| line.trim().to_owned()).collect())
    }

    fn failed() -> Outcome {
        Outcome::Backoff { error: "internal error of this entry".into() }
    }

    #[test]
    fn where_nothing_was_overtaken_there_is_no_gap() {
        let published = Outcome::published;
        for outcomes in [
            vec![],
            vec![published()],
            vec![failed()],
            vec![published(), published(), published()],
            vec![published(), published(), failed()],
            vec![published(), failed(), failed()],
            vec![failed(), failed(), failed()],
            vec![published(), failed(), Outcome::Untried],
        ] {
            assert_eq!(reported(&outcomes), (0, 0, vec![]), "{outcomes:?}");
        }
    }

    #[test]
    fn each_message_that_was_overtaken_is_counted_and_logged_once_without_its_payload() {
        let published = Outcome::published;
        let dead = Outcome::Permanent { error: "illegal character".into() };
        let (returned, counted, log) =
            reported(&[published(), failed(), published(), dead, Outcome::Untried, published(), failed()]);
        assert_eq!((returned, counted), (3, 3));
        insta::assert_snapshot!(log.join("\n"), @r#"
        ERROR order gap: the broker accepted later messages of this aggregate in the same request id=2 aggregate_id="order-7" outcome="backoff" accepted_before_it=[3, 6]
        ERROR order gap: the broker accepted later messages of this aggregate in the same request id=4 aggregate_id="order-7" outcome="permanent" accepted_before_it=[6]
        ERROR order gap: the broker accepted later messages of this aggregate in the same request id=5 aggregate_id="order-7" outcome="untried" accepted_before_it=[6]
        "#);
    }
}
