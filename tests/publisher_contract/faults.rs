//! Every way a request can fail, at an SQS that is broken on purpose.

use std::time::Duration;

use crate::support::sqs::{EntryFault, Fault, Loss, Request, Sqs};
use crate::{PUBLISH_TIMEOUT, claimed, classes, one_each, publish, unsendable};
use ordered_outbox::publisher::sqs::{Routes, SqsPublisher};
use ordered_outbox::{Message, Outcome};

const QUEUE: &str = "orders.fifo";

fn sqs() -> Sqs {
    let sqs = Sqs::start();
    sqs.create(QUEUE, &[]);
    sqs
}

async fn publisher_at(sqs: &Sqs) -> SqsPublisher {
    publisher_within(sqs, PUBLISH_TIMEOUT).await
}

async fn publisher_within(sqs: &Sqs, publish_timeout: Duration) -> SqsPublisher {
    let routes = Routes::All(sqs.url(QUEUE));
    SqsPublisher::connect_at(&sqs.endpoint(), routes, "test", publish_timeout).await.unwrap()
}

/// What becomes of `messages` where this goes wrong with every request.
async fn outcomes_where(fault: Fault, messages: &[Message]) -> Vec<Outcome> {
    let sqs = sqs();
    let publisher = publisher_at(&sqs).await;
    sqs.fail_with(fault);
    publish(&publisher, messages).await
}

/// Deduplication ids of every request so far.
fn sent(sqs: &Sqs) -> Vec<Vec<String>> {
    sqs.arrivals().into_iter().map(|arrival| arrival.deduplication_ids).collect()
}

fn bodies(request: &Request) -> Vec<&str> {
    request.entries.iter().map(|entry| entry.body.as_str()).collect()
}

fn error(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Backoff { error }
        | Outcome::Permanent { error }
        | Outcome::Unavailable { error, .. }
        | Outcome::TimedOut { error }
        | Outcome::Unclassified { error } => error,
        Outcome::Published { .. } | Outcome::Defer { .. } | Outcome::Untried => panic!("not a failure: {outcome:?}"),
    }
}

// C11
#[tokio::test]
async fn of_a_reply_with_failures_an_unknown_id_and_a_missing_one_only_the_confirmed_are_published() {
    let sqs = sqs();
    let publisher = publisher_at(&sqs).await;
    sqs.fail_next([Fault::Entries(vec![
        None,
        Some(EntryFault::Refused("InternalError", false)),
        Some(EntryFault::AcceptedUnmentioned),
        Some(EntryFault::Misnamed),
        Some(EntryFault::Forgotten),
        Some(EntryFault::Contradicted),
        Some(EntryFault::Refused("InvalidMessageContents", true)),
    ])]);
    let messages = one_each(1..=8);
    let outcomes = publish(&publisher, &messages).await;
    assert_eq!(
        classes(&outcomes),
        ["published", "backoff", "backoff", "backoff", "backoff", "backoff", "permanent", "published"]
    );
    assert_eq!(error(&outcomes[1]), "SQS refused this message: InternalError: scripted");
    for unmentioned in &outcomes[2..=4] {
        assert!(error(unmentioned).starts_with("SQS replied without a word on this message"), "{unmentioned:?}");
    }

    // under the same deduplication ids, by which those that are there are recognized
    assert_eq!(classes(&publish(&publisher, &messages[1..=5]).await), ["published"; 5]);
    let ids = |ids: &[i64]| ids.iter().map(|id| format!("test-{id}")).collect::<Vec<_>>();
    assert_eq!(sent(&sqs), [ids(&[1, 2, 3, 4, 5, 6, 7, 8]), ids(&[2, 3, 4, 5, 6])]);
    let copies = sqs.accepted().into_iter().filter(|accepted| accepted.is_copy).map(|accepted| accepted.outbox_id);
    assert_eq!(copies.collect::<Vec<_>>(), [3, 4]);
    assert_eq!(sqs.delivered().into_values().collect::<Vec<_>>(), [[1], [2], [3], [4], [5], [6], [8]]);
}

// C20 C21
#[tokio::test]
async fn a_request_refused_by_the_destination_is_an_outage_for_all_of_it() {
    for (status, code) in [
        (403, "RequestThrottled"),
        (400, "ThrottlingException"),
        (400, "KMS.AccessDeniedException"),
        (400, "KMS.ThrottlingException"),
        (403, "AccessDenied"),
        (403, "ExpiredToken"),
        (403, "InvalidClientTokenId"),
        (400, "AWS.SimpleQueueService.NonExistentQueue"),
        (404, "InvalidAddress"),
        (403, "InvalidSecurity"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
    ] {
        let outcomes = outcomes_where(Fault::Refused(status, code), &one_each(1..=3)).await;
        assert_eq!(classes(&outcomes), ["unavailable"; 3], "{code}");
        for outcome in &outcomes {
            assert_eq!(error(outcome), format!("SendMessageBatch: HTTP {status}: {code}: scripted"));
        }
    }
}

#[tokio::test]
async fn entries_refused_by_the_destination_are_an_outage_even_if_sqs_blames_the_sender() {
    let refused = |code| Some(EntryFault::Refused(code, true));
    let faults = vec![None, refused("RequestThrottled"), refused("KMS.AccessDeniedException")];
    let outcomes = outcomes_where(Fault::Entries(faults), &one_each(1..=3)).await;
    assert_eq!(classes(&outcomes), ["published", "unavailable", "unavailable"]);
}

// P7
#[tokio::test]
async fn entries_that_all_fail_inside_sqs_are_an_outage() {
    let refused = |code| Some(EntryFault::Refused(code, false));
    let faults = vec![refused("InternalError"), refused("ServiceUnavailable")];
    let outcomes = outcomes_where(Fault::Entries(faults), &one_each(1..=2)).await;
    assert_eq!(classes(&outcomes), ["unavailable"; 2]);
}

#[tokio::test]
async fn a_reply_that_is_not_one_of_sqs_confirms_nothing_and_blames_no_message() {
    let page = "<html>Welcome to the hotel network</html>";
    for (status, body) in
        [(200, page), (502, page), (200, ""), (200, "{}"), (200, r#"{"Successful": [{}]}"#), (302, "")]
    {
        let outcomes = outcomes_where(Fault::Says(status, body.into()), &one_each(1..=2)).await;
        assert_eq!(classes(&outcomes), ["unavailable"; 2], "{status} {body}");
    }
}

#[tokio::test]
async fn a_connection_that_is_refused_or_ends_without_a_reply_is_an_outage() {
    for fault in [Fault::Close, Fault::Reset, Fault::LosesReply(Loss::Reset)] {
        let outcomes = outcomes_where(fault, &one_each(1..=2)).await;
        assert_eq!(classes(&outcomes), ["unavailable"; 2]);
    }
    let mut sqs = sqs();
    let publisher = publisher_at(&sqs).await;
    sqs.refuse_connections().await;
    let outcomes = publish(&publisher, &one_each(1..=2)).await;
    assert_eq!(classes(&outcomes), ["unavailable"; 2]);
    assert_eq!(error(&outcomes[0]), "SendMessageBatch: no reply: Connection refused (os error 111)");
    sqs.take_connections();
    assert_eq!(classes(&publish(&publisher, &one_each(1..=2)).await), ["published"; 2]);
}

#[tokio::test]
async fn a_request_without_a_reply_or_with_half_of_one_ends_before_the_publish_timeout_after_two_tries() {
    let timeout = Duration::from_secs(1);
    for fault in [Fault::Hang, Fault::LosesReply(Loss::Hang), Fault::LosesReply(Loss::Trickle)] {
        let sqs = sqs();
        let publisher = publisher_within(&sqs, timeout).await;
        sqs.fail_with(fault.clone());
        let outcomes = tokio::time::timeout(timeout, publish(&publisher, &one_each(1..=2))).await.unwrap();
        assert_eq!(classes(&outcomes), ["timed out"; 2], "{fault:?}");
        assert_eq!(error(&outcomes[0]), "SendMessageBatch: no reply in time");
        assert_eq!(sent(&sqs), [["test-1", "test-2"], ["test-1", "test-2"]]);
    }
}

#[tokio::test]
async fn a_reply_that_asks_to_wait_does_not_hold_a_request_past_the_publish_timeout() {
    let timeout = Duration::from_secs(1);
    let sqs = sqs();
    let publisher = publisher_within(&sqs, timeout).await;
    sqs.fail_with(Fault::RetryAfter(60_000));
    let outcomes = tokio::time::timeout(timeout, publish(&publisher, &one_each(1..=2))).await.unwrap();
    assert_eq!(classes(&outcomes), ["unavailable"; 2]);
}

#[tokio::test]
async fn a_moment_of_trouble_is_ridden_out_by_the_second_try() {
    for fault in [Fault::Reset, Fault::Refused(500, "InternalError")] {
        let sqs = sqs();
        let publisher = publisher_at(&sqs).await;
        sqs.fail_next([fault]);
        assert_eq!(classes(&publish(&publisher, &one_each(1..=2)).await), ["published"; 2]);
        assert_eq!(sent(&sqs).len(), 2);
    }
}

// C20
#[tokio::test]
async fn a_throttled_request_comes_back_at_once_for_the_dispatcher_to_pace_by() {
    let codes = ["RequestThrottled", "ThrottlingException", "KmsThrottled"];
    let refused = [403, 400, 400].into_iter().zip(codes).map(|(status, code)| Fault::Refused(status, code));
    for fault in refused.chain([Fault::Says(429, String::new()), Fault::RetryAfter(50)]) {
        let sqs = sqs();
        let publisher = publisher_at(&sqs).await;
        sqs.fail_next([fault.clone()]);
        assert_eq!(classes(&publish(&publisher, &one_each(1..=2)).await), ["unavailable"; 2], "{fault:?}");
        assert_eq!(sent(&sqs).len(), 1, "{fault:?}");
    }
}

/// Refuses a request with this code if it holds a body that says `bad`.
async fn with_a_guilty_message(status: u16, code: &'static str) -> (Vec<Outcome>, usize) {
    let sqs = sqs();
    sqs.script(move |request| bodies(request).contains(&"\"bad\"").then_some(Fault::Refused(status, code)));
    let mut messages = one_each(1..=4);
    messages[2] = claimed(3, "order-3", "\"bad\"");
    let outcomes = publish(&publisher_at(&sqs).await, &messages).await;
    (outcomes, sent(&sqs).len())
}

// C10 C15
#[tokio::test]
async fn a_request_refused_for_one_message_is_sent_one_by_one_and_only_that_one_is_dead() {
    for code in ["InvalidMessageContents", "InvalidParameterValue", "AWS.SimpleQueueService.BatchRequestTooLong"] {
        let (outcomes, requests) = with_a_guilty_message(400, code).await;
        assert_eq!(classes(&outcomes), ["published", "published", "permanent", "published"], "{code}");
        assert_eq!(error(&outcomes[2]), format!("SendMessageBatch: HTTP 400: {code}: scripted"));
        assert_eq!(requests, 5);
    }
}

#[tokio::test]
async fn a_request_refused_for_nobody_knows_what_is_sent_one_by_one_and_kills_no_message() {
    for code in ["NeverHeardOf", "AWS.SimpleQueueService.InvalidBatchEntryId"] {
        let (outcomes, requests) = with_a_guilty_message(400, code).await;
        assert_eq!(classes(&outcomes), ["published", "published", "unclassified", "published"], "{code}");
        assert_eq!(requests, 5);
    }
}

/// Refuses a request of several messages, and one that holds a body that says `bad`.
async fn at_a_queue_that_takes_single_messages(messages: &[Message]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let sqs = sqs();
    sqs.script(|request| {
        let bodies = bodies(request);
        (bodies.len() > 1 || bodies == ["\"bad\""]).then_some(Fault::Refused(400, "InvalidMessageContents"))
    });
    let outcomes = publish(&publisher_at(&sqs).await, messages).await;
    (classes(&outcomes), sent(&sqs).split_off(1))
}

// P2
#[tokio::test]
async fn sent_one_by_one_the_messages_of_one_aggregate_go_in_turn() {
    let messages: Vec<_> = (1..=10).map(|id| claimed(id, "order-1", "{}")).collect();
    let (classes, sent) = at_a_queue_that_takes_single_messages(&messages).await;
    assert_eq!(classes, ["published"; 10]);
    assert_eq!(sent, (1..=10).map(|id| [format!("test-{id}")]).collect::<Vec<_>>());
}

// P2
#[tokio::test]
async fn sent_one_by_one_nothing_goes_behind_a_failed_message_of_its_aggregate() {
    let bodies = [("a", "{}"), ("a", "\"bad\""), ("a", "{}"), ("a", "{}"), ("b", "{}"), ("b", "{}")];
    let messages: Vec<_> = bodies.iter().zip(1..).map(|((name, body), id)| claimed(id, name, body)).collect();
    let (classes, sent) = at_a_queue_that_takes_single_messages(&messages).await;
    assert_eq!(classes, ["published", "permanent", "untried", "untried", "published", "published"]);
    let of = |ids: &[&str]| sent.iter().flatten().filter(|id| ids.contains(&id.as_str())).cloned().collect::<Vec<_>>();
    assert_eq!(of(&["test-1", "test-2", "test-3", "test-4"]), ["test-1", "test-2"]);
    assert_eq!(of(&["test-5", "test-6"]), ["test-5", "test-6"]);
}

// P2
#[tokio::test]
async fn what_is_behind_a_message_that_cannot_be_sent_is_not_sent_either() {
    let sqs = sqs();
    let messages = [
        claimed(1, "order-1", "{}"),
        unsendable(2, "order-1"),
        claimed(3, "order-1", "{}"),
        unsendable(4, "order-1"),
        claimed(5, "order-2", "{}"),
    ];
    let outcomes = publish(&publisher_at(&sqs).await, &messages).await;
    assert_eq!(classes(&outcomes), ["published", "permanent", "untried", "untried", "published"]);
    assert_eq!(sent(&sqs), [["test-1", "test-5"]]);
}

#[tokio::test]
async fn an_error_text_holds_no_payload() {
    let secret = "\"4111-1111\"";
    for status in [400, 403, 500] {
        let outcomes = outcomes_where(Fault::Refused(status, "NeverHeardOf"), &[claimed(1, "order-1", secret)]).await;
        assert!(!error(&outcomes[0]).contains("4111"), "{outcomes:?}");
    }
}
