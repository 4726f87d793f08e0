//! A queue that takes nothing, for every reason there is, or less than it is asked to.

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use ordered_outbox::DispatcherConfig;

use crate::log::Log;
use crate::support::sqs::{EntryFault, Fault, Loss};
use crate::support::{eventually, rows};
use crate::{Outbox, QUEUE, quick};

const MANY: usize = 100;

/// How a whole queue fails, each with what its trouble is called.
fn outages() -> Vec<(Fault, &'static str)> {
    vec![
        (Fault::Reset, "network"),
        (Fault::Close, "network"),
        (Fault::Says(200, "<html>a proxy</html>".into()), "network"),
        (Fault::Hang, "timeout"),
        (Fault::LosesReply(Loss::Reset), "network"),
        (Fault::LosesReply(Loss::Hang), "timeout"),
        (Fault::LosesReply(Loss::Trickle), "timeout"),
        (Fault::Refused(403, "RequestThrottled"), "throttled"),
        (Fault::RetryAfter(50), "throttled"),
        (Fault::Refused(400, "KmsThrottled"), "throttled"),
        (Fault::Refused(500, "InternalError"), "internal"),
        (Fault::Refused(503, "ServiceUnavailable"), "internal"),
        (Fault::Says(502, String::new()), "internal"),
        (Fault::Refused(400, "ExpiredToken"), "credentials"),
        (Fault::Refused(403, "InvalidClientTokenId"), "credentials"),
        (Fault::Refused(403, "AccessDenied"), "access"),
        (Fault::Refused(400, "KmsAccessDenied"), "kms"),
        (Fault::Refused(400, "KmsDisabled"), "kms"),
        (Fault::Refused(400, "AWS.SimpleQueueService.NonExistentQueue"), "queue"),
        (Fault::Says(404, String::new()), "endpoint"),
        (Fault::Entries(vec![Some(EntryFault::Refused("InternalError", false)); 10]), "internal"),
        (Fault::Entries(vec![Some(EntryFault::Refused("KmsAccessDenied", true)); 10]), "kms"),
        (Fault::Entries(vec![Some(EntryFault::Refused("RequestThrottled", true)); 10]), "throttled"),
        (Fault::Entries(vec![Some(EntryFault::Forgotten); 10]), "internal"),
        (Fault::Entries(vec![Some(EntryFault::AcceptedUnmentioned); 10]), "internal"),
        (Fault::Entries(vec![Some(EntryFault::Misnamed); 10]), "internal"),
    ]
}

/// C20 C21 (P7)
#[tokio::test]
async fn whatever_a_queue_fails_of_nothing_is_dead_no_attempt_is_spent_order_holds_and_it_is_called_by_its_name() {
    for (fault, trouble) in outages() {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        let _recording = metrics::set_default_local_recorder(&recorder);
        let outbox = Outbox::new().await;
        outbox.seed(40, 2).await;
        outbox.sqs.fail_with(fault.clone());
        let config = DispatcherConfig { publish_timeout: Duration::from_millis(500), ..quick() };
        let running = outbox.start(config).await;
        eventually("it was probed", || async { outbox.sqs.arrivals().len() >= 12 }).await;
        assert!(
            rows(&outbox.store).await.iter().all(|(_, status, _)| status != "done" && status != "dead"),
            "{fault:?}"
        );
        outbox.sqs.heal();
        eventually("all done", || outbox.all_done()).await;
        let summary = running.finish().await;
        assert_eq!((summary.dead, summary.backoff, summary.unclassified), (0, 0, 0), "{fault:?}: {summary:?}");
        outbox.assert_untouched_by_it().await;
        let counted = snapshotter.snapshot().into_vec().into_iter().find_map(|(key, _, _, value)| {
            let is_it = key.key().name() == "outbox_destination_trouble_total"
                && key.key().labels().any(|label| label.key() == "trouble" && label.value() == trouble);
            match value {
                DebugValue::Counter(count) if is_it => Some(count),
                _ => None,
            }
        });
        assert!(counted.is_some_and(|count| count > 0), "{fault:?} is not called {trouble}: {counted:?}");
    }
}

#[tokio::test]
async fn a_broker_that_refuses_connections_costs_nothing_and_is_found_again() {
    let mut outbox = Outbox::new().await;
    outbox.seed(MANY, 2).await;
    let running = outbox.start(quick()).await;
    eventually("some are sent", || async { !outbox.sqs.accepted().is_empty() }).await;
    outbox.sqs.refuse_connections().await;
    outbox.seed(MANY, 1).await;
    eventually("it is told", || async {
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM outbox WHERE last_error LIKE 'destination unavailable%')")
            .fetch_one(outbox.store.pool())
            .await
            .unwrap()
    })
    .await;
    outbox.sqs.take_connections();
    eventually("all done", || outbox.all_done()).await;
    running.finish().await;
    outbox.assert_untouched_by_it().await;
}

// C22
#[tokio::test]
async fn a_queue_deleted_under_traffic_is_waited_for_and_gets_the_rest_in_order() {
    let outbox = Outbox::new().await;
    outbox.seed(MANY, 3).await;
    let running = outbox.start(quick()).await;
    eventually("some are sent", || async { !outbox.sqs.accepted().is_empty() }).await;
    outbox.sqs.delete(QUEUE);
    outbox.seed(MANY, 1).await;
    let arrived = outbox.sqs.arrivals().len();
    eventually("it was probed", || async { outbox.sqs.arrivals().len() >= arrived + 30 }).await;
    outbox.sqs.create(QUEUE, &[]);
    eventually("all done", || outbox.all_done()).await;
    let summary = running.finish().await;
    assert_eq!(summary.dead, 0, "{summary:?}");
    outbox.assert_untouched_by_it().await;
}

// C21
#[tokio::test]
async fn the_log_says_of_an_outage_when_it_began_and_ended_what_it_is_and_nothing_of_each_message() {
    let (log, _logging) = Log::start();
    let outbox = Outbox::new().await;
    outbox.seed(MANY, 1).await;
    outbox.sqs.fail_with(Fault::Refused(400, "KmsAccessDenied"));
    let running = outbox.start(quick()).await;
    eventually("it was probed", || async { outbox.sqs.arrivals().len() >= 20 }).await;
    outbox.sqs.heal();
    eventually("all done", || outbox.all_done()).await;
    running.finish().await;
    let text = log.text();
    let told: Vec<_> = text.lines().filter(|line| line.contains(QUEUE)).collect();
    let (first, last) = (told[0], told[told.len() - 1]);
    assert!(first.contains("its breaker is open") && first.contains(r#"trouble="kms""#), "{text}");
    assert!(first.contains("KmsAccessDenied"), "{text}");
    assert!(last.contains("its breaker is closed"), "{text}");
    for probe in &told[1..told.len() - 1] {
        assert!(probe.contains("still unavailable") && probe.contains(r#"trouble="kms""#), "{text}");
    }
    assert!(told.len() < outbox.sqs.arrivals().len(), "{text}");
}

/// Requests a second from one arrival on, and those that came after it.
fn rate_since(outbox: &Outbox, from: usize) -> (f64, usize) {
    let arrivals = &outbox.sqs.arrivals()[from..];
    let took = (arrivals.last().unwrap().at - arrivals[0].at).as_secs_f64();
    (arrivals.len() as f64 / took, arrivals.len())
}

/// C20: neither hammered nor left idle, measured beside what this machine sends without a limit.
#[tokio::test]
async fn a_queue_that_takes_300_requests_a_second_is_used_and_not_hammered() {
    let outbox = Outbox::new().await;
    outbox.seed(12, 50).await;
    let running = outbox.start(quick()).await;
    eventually("all done without a limit", || outbox.all_done()).await;
    let (free, _) = rate_since(&outbox, 0);
    // far below what it can send, so that the limit is what holds it back
    let limit = (free / 3.0).min(300.0) as u32;
    outbox.sqs.limit(limit);
    outbox.seed(12, 400).await;
    // until it has found its pace
    eventually("a part is done", || async { outbox.sqs.accepted().len() > (50 + 100) * 12 }).await;
    let (unlimited_or_finding, refused_before) = (outbox.sqs.arrivals().len(), outbox.sqs.over_limit());
    eventually("all done", || outbox.all_done()).await;
    let summary = running.finish().await;
    assert_eq!((summary.dead, summary.backoff, summary.outages), (0, 0, 0), "{summary:?}");
    outbox.assert_untouched_by_it().await;
    let (sent, arrived) = rate_since(&outbox, unlimited_or_finding);
    let refused = outbox.sqs.over_limit() - refused_before;
    let used = sent * (arrived - refused) as f64 / arrived as f64;
    println!("{free:.0} requests/s without a limit; of {limit} {used:.0} used, {refused} of {arrived} refused");
    assert!(used > 0.5 * f64::from(limit), "{used} requests/s of {limit}");
    assert!(refused > 0 && refused * 3 < arrived, "{refused} of {arrived} were refused");
}
