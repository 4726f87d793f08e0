//! Whatever a script of faults does to lanes, batcher and classifier. P1, P2, P7

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordered_outbox::outcome::Patience;
use ordered_outbox::{DispatcherConfig, MessageId, NewMessage, enqueue_many};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::sqs::{Entry, EntryFault, Fault, Loss, Request};
use crate::support::{eventually, rows};
use crate::{Outbox, first_accepted, quick};

const SQS_ENTRIES: usize = 10;
const SQS_BYTES: usize = 1 << 20;

/// What a message has that no queue ever takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poison {
    /// Its entry is refused.
    Entry,
    /// Every request that has it is refused.
    Request,
}

#[derive(Clone, Debug)]
struct Row {
    aggregate: usize,
    bytes: usize,
    poison: Option<Poison>,
}

#[derive(Clone, Debug)]
struct Case {
    rows: Vec<Row>,
    faults: Vec<Fault>,
    dispatchers: usize,
    run_length: u32,
    batch_size: u32,
}

fn row(aggregates: usize) -> impl Strategy<Value = Row> {
    let bytes = prop_oneof![8 => 10_usize..500, 1 => 100_000_usize..300_000];
    let poison = prop_oneof![30 => Just(None), 1 => Just(Some(Poison::Entry)), 1 => Just(Some(Poison::Request))];
    (0..aggregates, bytes, poison).prop_map(|(aggregate, bytes, poison)| Row { aggregate, bytes, poison })
}

fn entry_fault() -> impl Strategy<Value = EntryFault> {
    prop_oneof![
        Just(EntryFault::Refused("InternalError", false)),
        Just(EntryFault::Refused("KmsThrottled", true)),
        Just(EntryFault::Refused("RequestThrottled", true)),
        Just(EntryFault::Refused("KmsAccessDenied", true)),
        Just(EntryFault::AcceptedUnmentioned),
        Just(EntryFault::Forgotten),
        Just(EntryFault::Misnamed),
        Just(EntryFault::Contradicted),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    let refused = vec![
        (403, "RequestThrottled"),
        (400, "KmsAccessDenied"),
        (400, "KmsThrottled"),
        (400, "ExpiredToken"),
        (403, "AccessDenied"),
        (400, "AWS.SimpleQueueService.NonExistentQueue"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ];
    prop_oneof![
        4 => proptest::sample::select(refused).prop_map(|(status, code)| Fault::Refused(status, code)),
        1 => Just(Fault::Reset),
        1 => Just(Fault::Close),
        1 => Just(Fault::RetryAfter(10)),
        1 => Just(Fault::Says(200, "<html>".into())),
        1 => Just(Fault::Says(502, String::new())),
        2 => Just(Fault::LosesReply(Loss::Reset)),
        4 => proptest::collection::vec(proptest::option::of(entry_fault()), SQS_ENTRIES).prop_map(Fault::Entries),
        2 => proptest::collection::vec(entry_fault().prop_map(Some), SQS_ENTRIES).prop_map(Fault::Entries),
        // a second each
        1 => prop_oneof![Just(Fault::Hang), Just(Fault::LosesReply(Loss::Hang)), Just(Fault::LosesReply(Loss::Trickle))],
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let rows = (1_usize..20).prop_flat_map(|aggregates| proptest::collection::vec(row(aggregates), 1..80));
    (rows, proptest::collection::vec(fault(), 0..25), 1_usize..3, 1_u32..8, 1_u32..40).prop_map(
        |(rows, faults, dispatchers, run_length, batch_size)| Case {
            rows,
            faults,
            dispatchers,
            run_length,
            batch_size,
        },
    )
}

/// How often something happened to a message that may be its own fault.
type Blame = Arc<Mutex<HashMap<MessageId, i32>>>;

/// What goes wrong with a request, and which of its messages an attempt may be spent for.
fn judge(request: &Request, fault: Option<Fault>, poisoned: &HashMap<MessageId, Poison>, blame: &Blame) -> Fault {
    let ids: Vec<_> = request.entries.iter().map(Entry::outbox_id).collect();
    let has = |id: &MessageId, poison| poisoned.get(id) == Some(&poison);
    let mut blame = blame.lock().unwrap();
    let mut may_be_its_own = |id: MessageId| *blame.entry(id).or_default() += 1;
    if ids.iter().any(|id| has(id, Poison::Request)) {
        return Fault::Refused(400, "InvalidParameterValue");
    }
    let is_poison = |id: &MessageId| has(id, Poison::Entry);
    let entries = match fault {
        None => vec![None; ids.len()],
        Some(Fault::Entries(faults)) => faults.into_iter().take(ids.len()).collect(),
        Some(fault) => {
            // by itself, while others are answered
            if matches!(fault, Fault::Hang | Fault::LosesReply(Loss::Hang | Loss::Trickle)) && ids.len() == 1 {
                may_be_its_own(ids[0]);
            }
            // what is never taken is not taken here, either
            let loses_poison = matches!(fault, Fault::LosesReply(_)) && ids.iter().any(is_poison);
            return if loses_poison { Fault::Reset } else { fault };
        }
    };
    let entries: Vec<_> = ids
        .iter()
        .zip(entries)
        .map(
            |(id, fault)| if is_poison(id) { Some(EntryFault::Refused("InvalidMessageContents", true)) } else { fault },
        )
        .collect();
    // others of the same request were taken
    if entries.iter().any(Option::is_none) {
        for (id, fault) in ids.iter().zip(&entries) {
            match fault {
                None => {}
                // trouble of the queue, whatever becomes of the others
                Some(EntryFault::Refused(code, true)) if code.starts_with("Kms") || code.contains("Throttled") => {}
                Some(_) => may_be_its_own(*id),
            }
        }
    }
    Fault::Entries(entries)
}

fn config(case: &Case) -> DispatcherConfig {
    DispatcherConfig {
        run_length: case.run_length,
        batch_size: case.batch_size,
        publish_timeout: Duration::from_secs(1),
        // dead are only those that can never be sent
        patience: Patience { max_attempts: 1_000, ..quick().patience },
        ..quick()
    }
}

async fn holds(case: Case) {
    let outbox = Outbox::new().await;
    let messages: Vec<_> = case
        .rows
        .iter()
        .map(|row| {
            let payload = format!("\"{}\"", "x".repeat(row.bytes));
            NewMessage::from_json("order", format!("order-{}", row.aggregate), "e", payload)
        })
        .collect();
    let mut tx = outbox.store.pool().begin().await.unwrap();
    let ids = enqueue_many(&mut tx, &messages).await.unwrap();
    tx.commit().await.unwrap();
    let poisoned: HashMap<_, _> =
        ids.iter().zip(&case.rows).filter_map(|(id, row)| row.poison.map(|poison| (*id, poison))).collect();

    let blame = Blame::default();
    let (blamed, known, mut faults) = (Arc::clone(&blame), poisoned.clone(), case.faults.clone().into_iter());
    outbox.sqs.script(move |request| request.sends().then(|| judge(request, faults.next(), &known, &blamed)));
    let mut running = Vec::new();
    for _ in 0..case.dispatchers {
        running.push(outbox.start(config(&case)).await);
    }

    // of each aggregate, what comes before its first message that can never be sent; that one is dead, what follows waits
    let (mut sent, mut expected) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
    let mut gated = HashSet::new();
    for (id, row) in ids.iter().zip(&case.rows) {
        let status = match row.poison {
            _ if gated.contains(&row.aggregate) => "pending",
            Some(_) => {
                gated.insert(row.aggregate);
                "dead"
            }
            None => {
                sent.entry(format!("order-{}", row.aggregate)).or_default().push(*id);
                "done"
            }
        };
        expected.push((*id, status));
    }
    let states = || async { rows(&outbox.store).await };
    eventually("everything is where it belongs", || async {
        states().await.iter().map(|(id, status, _)| (*id, status.as_str())).eq(expected.iter().copied())
    })
    .await;
    for dispatcher in running {
        dispatcher.finish().await;
    }
    assert_eq!(first_accepted(&outbox.sqs.accepted()), sent, "first acceptances, in order");
    assert_eq!(outbox.sqs.delivered(), sent, "and every one of them once");
    let blame = blame.lock().unwrap().clone();
    for (id, status, attempts) in states().await {
        let own = blame.get(&id).copied().unwrap_or_default();
        let most = if status == "pending" { 0 } else { 1 + own };
        assert!(attempts <= most, "{id} is {status} with {attempts} attempts, {own} of them perhaps its own fault");
    }
    for arrival in outbox.sqs.arrivals() {
        assert!(arrival.groups.len() <= SQS_ENTRIES && arrival.bytes <= SQS_BYTES, "{arrival:?}");
        let groups: HashSet<_> = arrival.groups.iter().collect();
        assert_eq!(groups.len(), arrival.groups.len(), "two of a group in one request: {arrival:?}");
    }
}

/// C10 C11 C12 C13 C20 C21 C22
#[test]
fn no_script_of_faults_reorders_loses_or_spends() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config =
        ProptestConfig { cases: 24, max_shrink_iters: 30, failure_persistence: None, ..ProptestConfig::default() };
    let ran = TestRunner::new(config).run(&case(), |case| {
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(holds(case))));
        held.map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            TestCaseError::fail(text.unwrap_or_else(|| "it panicked".into()))
        })
    });
    if let Err(error) = ran {
        panic!("{error}");
    }
}
