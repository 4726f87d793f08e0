//! Ten minutes of outages, one after the other, on a clock that runs 25 times as fast.

use std::collections::BTreeSet;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use ordered_outbox::DispatcherConfig;
use tokio::time::Instant;

use crate::clock::Clock;
use crate::support::rows;
use crate::support::sqs::{Arrival, EntryFault, Fault, Loss};
use crate::{Outbox, first_accepted};

const AGGREGATES: usize = 1_000;
const OUTAGE: Duration = Duration::from_mins(10);
const SPEED: u32 = 25;
/// What a rate is told from.
const WINDOW: Duration = Duration::from_millis(100);

/// One of each trouble there is, with replies that are lost first, so that their deduplication window ends within the
/// outage; `None`: connections are refused.
fn outages() -> Vec<(&'static str, Option<Fault>)> {
    vec![
        ("replies lost by resets", Some(Fault::LosesReply(Loss::Reset))),
        ("replies that trickle", Some(Fault::LosesReply(Loss::Trickle))),
        ("entries taken and not mentioned", Some(Fault::Entries(vec![Some(EntryFault::AcceptedUnmentioned); 10]))),
        ("connections refused", None),
        ("connections reset", Some(Fault::Reset)),
        ("hanging", Some(Fault::Hang)),
        ("throttled", Some(Fault::Refused(403, "RequestThrottled"))),
        ("internal errors", Some(Fault::Refused(500, "InternalError"))),
        (
            "internal errors of entries",
            Some(Fault::Entries(vec![Some(EntryFault::Refused("InternalError", false)); 10])),
        ),
        ("credentials expired", Some(Fault::Refused(400, "ExpiredToken"))),
        ("access denied", Some(Fault::Refused(403, "AccessDenied"))),
        ("key denied", Some(Fault::Refused(400, "KmsAccessDenied"))),
        ("queue missing", Some(Fault::Refused(400, "AWS.SimpleQueueService.NonExistentQueue"))),
        ("endpoint missing", Some(Fault::Says(404, String::new()))),
    ]
}

fn entries(arrivals: &[Arrival]) -> usize {
    arrivals.iter().map(|arrival| arrival.deduplication_ids.len()).sum()
}

/// Messages a second.
fn rate(arrivals: &[Arrival], over: Duration) -> f64 {
    entries(arrivals) as f64 / over.as_secs_f64()
}

/// When the first window began in which this rate was reached.
fn reached(arrivals: &[Arrival], full: f64) -> Option<Instant> {
    (0..arrivals.len()).find_map(|from| {
        let began = arrivals[from].at;
        let until = arrivals.partition_point(|arrival| arrival.at < began + WINDOW);
        (rate(&arrivals[from..until], WINDOW) >= full).then_some(began)
    })
}

// C20 C21 C22 (P2, P7, P9)
#[tokio::test]
async fn ten_minutes_of_every_outage_kill_nothing_cost_no_attempt_and_full_rate_is_back_within_two_probes() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let mut outbox = Outbox::new().await;
    let config = DispatcherConfig::default();
    let probe_interval = config.breaker.cap;
    outbox.seed(AGGREGATES, 3).await;
    let mut clock = Clock::of(&outbox.store);
    let running = outbox.start(config).await;
    while entries(&outbox.sqs.arrivals()) < 3 * AGGREGATES {
        clock.tick(1).await;
    }
    let before = outbox.sqs.arrivals();
    let full = rate(&before, before.last().unwrap().at - before[0].at);
    while !outbox.all_done().await {
        clock.tick(1).await;
    }

    outbox.seed(AGGREGATES, 1).await;
    let began = Instant::now();
    let outages = outages();
    let kinds = outages.len();
    let each = OUTAGE / u32::try_from(kinds).unwrap();
    for (n, (name, fault)) in outages.into_iter().enumerate() {
        let arrived = outbox.sqs.arrivals().len();
        let refuses = fault.is_none();
        match fault {
            Some(fault) => outbox.sqs.fail_with(fault),
            None => outbox.sqs.refuse_connections().await,
        }
        outbox.seed_some(n * AGGREGATES / 4, AGGREGATES / 4, AGGREGATES).await;
        clock.run_until(began + each * (n as u32 + 1), SPEED).await;
        assert!(refuses || outbox.sqs.arrivals().len() > arrived, "never met: {name}");
        if refuses {
            outbox.sqs.take_connections();
        }
        let states = rows(&outbox.store).await;
        assert!(states.iter().all(|(_, status, _)| status != "dead"), "{name}: {states:?}");
        assert_eq!(states.iter().filter(|(_, status, _)| status == "done").count(), 3 * AGGREGATES, "{name}");
    }

    // the clock wrote each row a hundred times: what that left behind is no part of an outage
    sqlx::query("VACUUM outbox").execute(outbox.store.pool()).await.unwrap();
    let healed = Instant::now();
    let arrived = outbox.sqs.arrivals().len();
    outbox.sqs.heal();
    while outbox.sqs.arrivals().len() == arrived {
        clock.tick(SPEED).await;
    }
    let noticed = healed.elapsed();
    // as much as before, besides what waits
    outbox.seed(AGGREGATES, 3).await;
    let waiting = rows(&outbox.store).await.iter().filter(|(_, status, _)| status != "done").count();
    while entries(&outbox.sqs.arrivals()[arrived..]) < waiting {
        clock.tick(1).await;
    }
    while !outbox.all_done().await {
        clock.tick(1).await;
        assert!(healed.elapsed() < OUTAGE, "not all are sent");
    }
    let back = reached(&outbox.sqs.arrivals()[arrived..], 0.9 * full).expect("full rate came back") - healed;
    running.stop.cancel();
    while !running.dispatcher.is_finished() {
        clock.tick(1).await;
    }
    let summary = running.dispatcher.await.unwrap().unwrap();
    println!(
        "{full:.0} messages/s before; after {kinds} kinds of outage in {OUTAGE:?} a request came back {noticed:?} and 90 % of that \
         rate {back:?} after healing, with probes at most {probe_interval:?} apart"
    );
    assert!(back < 2 * probe_interval, "{back:?}");

    assert_eq!((summary.dead, summary.backoff, summary.unclassified), (0, 0, 0), "{summary:?}");
    let states = rows(&outbox.store).await;
    assert!(states.iter().all(|(_, status, attempts)| status == "done" && *attempts == 1), "{states:?}");
    let first = first_accepted(&outbox.sqs.accepted());
    for (group, ids) in &first {
        assert!(ids.is_sorted(), "{group}: {ids:?}");
    }
    let sent: BTreeSet<_> = first.into_values().flatten().collect();
    assert!(sent.into_iter().eq(states.iter().map(|(id, _, _)| *id)));
    // what was sent again after its deduplication window, is counted
    let copies = outbox.sqs.delivered().values().map(Vec::len).sum::<usize>() - states.len();
    let late = snapshotter.snapshot().into_vec().into_iter().find_map(|(key, _, _, value)| match value {
        DebugValue::Counter(count) if key.key().name() == "outbox_dedup_window_exceeded_total" => Some(count as usize),
        _ => None,
    });
    println!("{copies} copies reach consumers; {late:?} messages were sent again after their deduplication window");
    assert!(copies > 0 && late >= Some(copies), "{copies} copies, counted {late:?}");
}
