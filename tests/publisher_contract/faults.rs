//! Every way a request can fail, at a stand-in that replies as scripted.

use std::time::Duration;

use ordered_outbox::publisher::sqs::{Routes, SqsPublisher};
use ordered_outbox::{Message, Outcome};
use serde_json::{Value, json};

use crate::double::{Double, Reply, accepted, failed};
use crate::{PUBLISH_TIMEOUT, claimed, classes, one_each, publish, unsendable};

async fn publisher_at(double: &Double) -> SqsPublisher {
    publisher_within(double, PUBLISH_TIMEOUT).await
}

async fn publisher_within(double: &Double, publish_timeout: Duration) -> SqsPublisher {
    let routes = Routes::All(double.queue_url());
    SqsPublisher::connect_at(&double.endpoint(), routes, "test", publish_timeout).await.unwrap()
}

/// What becomes of `messages` where every request is answered so.
async fn outcomes_where(
    script: impl Fn(&Value) -> Reply + Send + Sync + 'static,
    messages: &[Message],
) -> Vec<Outcome> {
    let double = Double::new(script).await;
    publish(&publisher_at(&double).await, messages).await
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
    let reply = json!({
        "Successful": [accepted("3"), accepted("17"), accepted("0")],
        "Failed": [failed("1", "InternalError", false), failed("4", "InvalidMessageContents", true)],
    });
    let double = Double::new(move |request| match request["Entries"].as_array().unwrap().len() {
        5 => Reply::ok(&reply),
        _ => Reply::accept(request),
    })
    .await;
    let publisher = publisher_at(&double).await;
    let messages = one_each(1..=5);
    let outcomes = publish(&publisher, &messages).await;
    assert_eq!(classes(&outcomes), ["published", "backoff", "backoff", "published", "permanent"]);
    let confirmed = |id: &str| Outcome::Published {
        broker_message_id: Some(format!("m{id}")),
        broker_sequence: Some(format!("s{id}")),
    };
    assert_eq!((&outcomes[0], &outcomes[3]), (&confirmed("0"), &confirmed("3")));
    assert_eq!(error(&outcomes[1]), "SQS refused this message: InternalError: scripted");
    assert!(error(&outcomes[2]).starts_with("SQS replied without a word on this message"));

    assert_eq!(classes(&publish(&publisher, &messages[1..=2]).await), ["published", "published"]);
    let first = ["test-1", "test-2", "test-3", "test-4", "test-5"].map(str::to_owned).to_vec();
    assert_eq!(double.sent(), [first, vec!["test-2".into(), "test-3".into()]]);
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
        let outcomes = outcomes_where(move |_| Reply::error(status, code), &one_each(1..=3)).await;
        assert_eq!(classes(&outcomes), ["unavailable"; 3], "{code}");
        for outcome in &outcomes {
            assert_eq!(error(outcome), format!("SendMessageBatch: HTTP {status}: {code}: scripted"));
        }
    }
}

#[tokio::test]
async fn entries_refused_by_the_destination_are_an_outage_even_if_sqs_blames_the_sender() {
    let reply = json!({"Successful": [accepted("0")], "Failed": [
        failed("1", "RequestThrottled", true), failed("2", "KMS.AccessDeniedException", true),
    ]});
    let outcomes = outcomes_where(move |_| Reply::ok(&reply), &one_each(1..=3)).await;
    assert_eq!(classes(&outcomes), ["published", "unavailable", "unavailable"]);
}

// P7
#[tokio::test]
async fn entries_that_all_fail_inside_sqs_are_an_outage() {
    let reply = json!({"Failed": [failed("0", "InternalError", false), failed("1", "ServiceUnavailable", false)]});
    let outcomes = outcomes_where(move |_| Reply::ok(&reply), &one_each(1..=2)).await;
    assert_eq!(classes(&outcomes), ["unavailable"; 2]);
}

#[tokio::test]
async fn a_reply_that_is_not_one_of_sqs_confirms_nothing_and_blames_no_message() {
    let page = "<html>Welcome to the hotel network</html>";
    for (status, body) in
        [(200, page), (502, page), (200, ""), (200, "{}"), (200, r#"{"Successful": [{}]}"#), (302, "")]
    {
        let outcomes = outcomes_where(move |_| Reply::Http(status, body.into(), None), &one_each(1..=2)).await;
        assert_eq!(classes(&outcomes), ["unavailable"; 2], "{status} {body}");
    }
}

#[tokio::test]
async fn a_connection_that_is_refused_or_ends_without_a_reply_is_an_outage() {
    let outcomes = outcomes_where(|_| Reply::Close, &one_each(1..=2)).await;
    assert_eq!(classes(&outcomes), ["unavailable"; 2]);

    let mut double = Double::new(Reply::accept).await;
    let publisher = publisher_at(&double).await;
    double.stop().await;
    let outcomes = publish(&publisher, &one_each(1..=2)).await;
    assert_eq!(classes(&outcomes), ["unavailable"; 2]);
    assert_eq!(error(&outcomes[0]), "SendMessageBatch: no reply: Connection refused (os error 111)");
}

#[tokio::test]
async fn a_request_without_a_reply_ends_before_the_publish_timeout_after_two_tries() {
    let timeout = Duration::from_secs(1);
    let double = Double::new(|_| Reply::Hang).await;
    let publisher = publisher_within(&double, timeout).await;
    let outcomes = tokio::time::timeout(timeout, publish(&publisher, &one_each(1..=2))).await.unwrap();
    assert_eq!(classes(&outcomes), ["timed out"; 2]);
    assert_eq!(error(&outcomes[0]), "SendMessageBatch: no reply in time");
    assert_eq!(double.sent(), [["test-1", "test-2"], ["test-1", "test-2"]]);
}

#[tokio::test]
async fn a_reply_that_asks_to_wait_does_not_hold_a_request_past_the_publish_timeout() {
    let timeout = Duration::from_secs(1);
    let double = Double::new(|_| Reply::RetryAfter(60_000)).await;
    let publisher = publisher_within(&double, timeout).await;
    let outcomes = tokio::time::timeout(timeout, publish(&publisher, &one_each(1..=2))).await.unwrap();
    assert_eq!(classes(&outcomes), ["unavailable"; 2]);
}

#[tokio::test]
async fn a_moment_of_throttling_is_ridden_out_by_the_second_try() {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let double = Double::new(move |request| match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => Reply::error(403, "RequestThrottled"),
        _ => Reply::accept(request),
    })
    .await;
    assert_eq!(classes(&publish(&publisher_at(&double).await, &one_each(1..=2)).await), ["published"; 2]);
    assert_eq!(double.sent().len(), 2);
}

/// Refuses a request with this code if it holds a body that says `bad`.
async fn with_a_guilty_message(status: u16, code: &'static str) -> (Vec<Outcome>, usize) {
    let double = Double::new(move |request| {
        let mut entries = request["Entries"].as_array().unwrap().iter();
        let guilty = entries.any(|entry| entry["MessageBody"] == "\"bad\"");
        if guilty { Reply::error(status, code) } else { Reply::accept(request) }
    })
    .await;
    let mut messages = one_each(1..=4);
    messages[2] = claimed(3, "order-3", "\"bad\"");
    let outcomes = publish(&publisher_at(&double).await, &messages).await;
    (outcomes, double.sent().len())
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
    let double = Double::new(move |request| {
        let entries = request["Entries"].as_array().unwrap();
        let guilty = entries.len() > 1 || entries[0]["MessageBody"] == "\"bad\"";
        if guilty { Reply::error(400, "InvalidMessageContents") } else { Reply::accept(request) }
    })
    .await;
    let outcomes = publish(&publisher_at(&double).await, messages).await;
    (classes(&outcomes), double.sent().split_off(1))
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
    let double = Double::new(Reply::accept).await;
    let messages = [
        claimed(1, "order-1", "{}"),
        unsendable(2, "order-1"),
        claimed(3, "order-1", "{}"),
        unsendable(4, "order-1"),
        claimed(5, "order-2", "{}"),
    ];
    let outcomes = publish(&publisher_at(&double).await, &messages).await;
    assert_eq!(classes(&outcomes), ["published", "permanent", "untried", "untried", "published"]);
    assert_eq!(double.sent(), [["test-1", "test-5"]]);
}

#[tokio::test]
async fn an_error_text_holds_no_payload() {
    let secret = "\"4111-1111\"";
    for reply in [400, 403, 500] {
        let outcomes =
            outcomes_where(move |_| Reply::error(reply, "NeverHeardOf"), &[claimed(1, "order-1", secret)]).await;
        assert!(!error(&outcomes[0]).contains("4111"), "{outcomes:?}");
    }
}
