//! Replies that fail entry by entry.

use ordered_outbox::MessageId;

use crate::support::sqs::{Accepted, Entry, EntryFault, Fault, Request};
use crate::support::{eventually, rows};
use crate::{Outbox, first_accepted, quick};

fn has(request: &Request, id: MessageId) -> bool {
    request.sends() && request.entries.iter().any(|entry| entry.outbox_id() == id)
}

/// In a reply to a request that has these rows, these go wrong, and the others do not.
fn wrong(request: &Request, faults: &[(MessageId, EntryFault)]) -> Fault {
    let of = |id| faults.iter().find(|(wrong, _)| *wrong == id).map(|(_, fault)| *fault);
    Fault::Entries(request.entries.iter().map(|entry| of(entry.outbox_id())).collect())
}

fn copies_of(accepted: &[Accepted], id: MessageId) -> Vec<(bool, &str)> {
    accepted.iter().filter(|a| a.outbox_id == id).map(|a| (a.is_copy, a.deduplication_id.as_str())).collect()
}

// C10
#[tokio::test]
async fn of_a_shared_request_only_the_refused_entry_goes_again_and_nothing_of_its_aggregate_overtakes_it() {
    let outbox = Outbox::new().await;
    outbox.seed(10, 2).await;
    let mut refusals = 0;
    outbox.sqs.script(move |request| {
        if !has(request, 1) || refusals == 3 {
            return None;
        }
        refusals += 1;
        // others are taken meanwhile, or it would be an outage
        Some(wrong(request, &[(1, EntryFault::Refused("InternalError", false))]))
    });
    let running = outbox.start(quick()).await;
    eventually("all done", || outbox.all_done()).await;
    let summary = running.finish().await;
    assert_eq!((summary.published, summary.dead), (20, 0), "{summary:?}");
    let delivered = outbox.sqs.delivered();
    assert_eq!(delivered.len(), 10);
    for (n, group) in (0..10).map(|n| (n, format!("order-{n}"))) {
        assert_eq!(delivered[&group], [n + 1, n + 11], "{group}");
    }
    let sent_of =
        |id| outbox.sqs.arrivals().iter().filter(|a| a.deduplication_ids.contains(&format!("test-{id}"))).count();
    assert_eq!(sent_of(1), 4);
    for id in 2..=20 {
        assert_eq!(sent_of(id), 1, "{id}");
    }
}

// C11
#[tokio::test]
async fn of_a_reply_with_a_failed_an_unknown_and_a_missing_entry_the_unconfirmed_go_again_under_the_same_id() {
    let outbox = Outbox::new().await;
    outbox.seed(10, 2).await;
    let faults = [
        (2, EntryFault::Refused("InternalError", false)),
        (3, EntryFault::Misnamed),
        (4, EntryFault::Forgotten),
        (5, EntryFault::AcceptedUnmentioned),
        (6, EntryFault::Contradicted),
    ];
    let mut told = false;
    outbox.sqs.script(move |request| {
        let first = request.sends() && !std::mem::replace(&mut told, true);
        first.then(|| wrong(request, &faults))
    });
    let running = outbox.start(quick()).await;
    eventually("all done", || outbox.all_done()).await;
    let summary = running.finish().await;
    assert_eq!((summary.published, summary.dead, summary.unclassified), (20, 0, 0), "{summary:?}");
    let accepted = outbox.sqs.accepted();
    for (id, copies) in [
        (1, vec![false]),
        (2, vec![false]),
        (3, vec![false, true]),
        (4, vec![false]),
        (5, vec![false, true]),
        (6, vec![false]),
    ] {
        let deduplication_id = format!("test-{id}");
        let expected: Vec<_> = copies.into_iter().map(|copy| (copy, deduplication_id.as_str())).collect();
        assert_eq!(copies_of(&accepted, id), expected, "{id}");
    }
    for (group, ids) in first_accepted(&accepted) {
        assert_eq!(ids.len(), 2, "{group}");
        assert!(ids.is_sorted(), "{group}: {ids:?}");
    }
    // what SQS took and did not say so was no outage, for it took others: an attempt was spent
    let attempts: Vec<_> = rows(&outbox.store).await.into_iter().map(|(_, _, attempts)| attempts).collect();
    assert_eq!(attempts[..6], [1, 2, 2, 2, 2, 2]);
    assert!(attempts[6..].iter().all(|attempts| *attempts == 1), "{attempts:?}");
}

// C12
#[tokio::test]
async fn where_the_third_of_three_requests_breaks_the_first_two_are_not_sent_again() {
    let outbox = Outbox::new().await;
    outbox.seed(30, 1).await;
    let (mut broken, mut tries) = (None, 0);
    let mut requests = 0;
    outbox.sqs.script(move |request| {
        requests += usize::from(request.sends());
        if requests == 3 && broken.is_none() {
            broken = request.entries.first().map(Entry::outbox_id);
        }
        // more often than the SDK tries by itself
        if broken.is_some_and(|id| has(request, id)) && tries < 5 {
            tries += 1;
            return Some(Fault::Reset);
        }
        None
    });
    let running = outbox.start(quick()).await;
    eventually("all done", || outbox.all_done()).await;
    let summary = running.finish().await;
    assert_eq!((summary.published, summary.dead, summary.backoff), (30, 0, 0), "{summary:?}");
    outbox.assert_untouched_by_it().await;
    let arrivals = outbox.sqs.arrivals();
    let taken: Vec<_> = arrivals[..2].iter().flat_map(|arrival| arrival.deduplication_ids.clone()).collect();
    assert_eq!(taken.len(), 20);
    for id in taken {
        assert_eq!(arrivals.iter().filter(|arrival| arrival.deduplication_ids.contains(&id)).count(), 1, "{id}");
    }
}

// C16
#[tokio::test]
async fn two_messages_with_the_same_payload_are_delivered_both_even_after_a_lost_reply() {
    let outbox = Outbox::new().await;
    // of one aggregate, and all alike
    outbox.seed(1, 2).await;
    outbox.sqs.fail_next([Fault::LosesReply(crate::support::sqs::Loss::Reset)]);
    let running = outbox.start(quick()).await;
    eventually("all done", || outbox.all_done()).await;
    running.finish().await;
    outbox.assert_untouched_by_it().await;
    assert_eq!(copies_of(&outbox.sqs.accepted(), 1), [(false, "test-1"), (true, "test-1")]);
}

// C26
#[tokio::test]
async fn attempts_of_any_size_neither_overflow_nor_stop_what_waits_beside_them() {
    let outbox = Outbox::new().await;
    outbox.seed(6, 1).await;
    let counts = [62, 63, 64, 999, i32::MAX - 1, i32::MAX];
    for (id, attempts) in (1_i64..).zip(counts) {
        sqlx::query("UPDATE outbox SET attempts = $2 WHERE id = $1")
            .bind(id)
            .bind(attempts)
            .execute(outbox.store.pool())
            .await
            .unwrap();
    }
    // an outage first: refunds, too
    outbox.sqs.fail_next(vec![Fault::Refused(500, "InternalError"); 20]);
    let mut config = quick();
    config.patience.max_attempts = u32::MAX;
    let running = outbox.start(config).await;
    eventually("all done", || outbox.all_done()).await;
    let summary = running.finish().await;
    assert_eq!((summary.published, summary.dead), (6, 0), "{summary:?}");
}
