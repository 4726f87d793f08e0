//! What every publisher does, run for the one in memory and for the one that sends to SQS, to LocalStack and to the SQS
//! that can be broken; then what SQS adds.

mod support;

#[path = "publisher_contract/checking.rs"]
mod checking;
#[path = "publisher_contract/connecting.rs"]
mod connecting;
#[path = "publisher_contract/faults.rs"]
mod faults;
#[path = "publisher_contract/queues.rs"]
mod queues;

use std::time::Duration;

use ordered_outbox::publisher::sqs::{Routes, SqsPublisher};
use ordered_outbox::publisher::{Destination, RecordingPublisher};
use ordered_outbox::{Message, MessageId, Outcome, Publisher};
use support::queue::{Queue, Received, Server};

/// A publish timeout that no test reaches unless it means to.
pub(crate) const PUBLISH_TIMEOUT: Duration = Duration::from_secs(30);

/// A message as a claim hands it over.
pub(crate) fn claimed(id: MessageId, aggregate_id: &str, payload: &str) -> Message {
    Message {
        id,
        lease_version: 1,
        attempts: 1,
        aggregate_type: "order".into(),
        aggregate_id: aggregate_id.into(),
        event_type: "OrderPlaced".into(),
        payload: payload.into(),
        headers_json: "{}".into(),
        first_tried: None,
        age: Duration::ZERO,
    }
}

/// A message SQS can never accept: its body is JSON and holds a character that XML 1.0 does not have.
pub(crate) fn unsendable(id: MessageId, aggregate_id: &str) -> Message {
    claimed(id, aggregate_id, "\"\u{FFFF}\"")
}

/// One message each of `order-FIRST` to `order-LAST`.
pub(crate) fn one_each(ids: std::ops::RangeInclusive<MessageId>) -> Vec<Message> {
    ids.map(|id| claimed(id, &format!("order-{id}"), &format!(r#"{{"n": {id}}}"#))).collect()
}

pub(crate) fn classes(outcomes: &[Outcome]) -> Vec<&'static str> {
    outcomes.iter().map(Outcome::class).collect()
}

/// A publisher to this queue, under a source name of its own.
pub(crate) async fn publisher_to(queue: &Queue) -> SqsPublisher {
    publisher_named("test", queue).await
}

pub(crate) async fn publisher_named(source: &str, queue: &Queue) -> SqsPublisher {
    let routes = Routes::All(queue.url().into());
    SqsPublisher::connect_at(queue.endpoint(), routes, source, PUBLISH_TIMEOUT).await.unwrap()
}

pub(crate) fn ids_of(received: &[Received]) -> Vec<MessageId> {
    received.iter().map(Received::outbox_id).collect()
}

/// Where the messages go; the same place for all of them.
pub(crate) fn destination_of(publisher: &impl Publisher, messages: &[Message]) -> Destination {
    let destination = publisher.destination(&messages[0]).unwrap();
    assert!(messages.iter().all(|message| publisher.destination(message).as_ref() == Some(&destination)));
    destination
}

pub(crate) async fn publish(publisher: &impl Publisher, messages: &[Message]) -> Vec<Outcome> {
    publisher.publish(&destination_of(publisher, messages), messages).await
}

/// Aggregate and row id of everything accepted so far, in the order of acceptance.
trait Accepted {
    async fn accepted(&self) -> Vec<(String, MessageId)>;
}

impl Accepted for RecordingPublisher {
    async fn accepted(&self) -> Vec<(String, MessageId)> {
        RecordingPublisher::accepted(self).into_iter().map(|message| (message.aggregate_id, message.id)).collect()
    }
}

impl Accepted for Queue {
    async fn accepted(&self) -> Vec<(String, MessageId)> {
        self.receive_all().await.into_iter().map(|message| (message.group.clone(), message.outbox_id())).collect()
    }
}

async fn each_message_gets_one_outcome_in_the_order_given(publisher: &impl Publisher, bad: Message) {
    let destination = destination_of(publisher, std::slice::from_ref(&bad));
    assert_eq!(publisher.publish(&destination, &[]).await, []);
    for place in [0, 4, 9] {
        let mut messages = one_each(10..=19);
        messages[place] = bad.clone();
        let mut expected = ["published"; 10];
        expected[place] = "permanent";
        assert_eq!(classes(&publish(publisher, &messages).await), expected);
    }
}

async fn successive_publishes_are_accepted_in_order_per_aggregate(publisher: &impl Publisher, queue: &impl Accepted) {
    // ids deliberately not in the order of the sends: the order of the sends is what counts
    let rounds = [[("a", 5), ("b", 9)], [("b", 2), ("a", 1)], [("a", 7), ("b", 3)], [("b", 8), ("a", 4)]];
    for round in rounds {
        let messages = round.map(|(aggregate, id)| claimed(id, aggregate, "{}"));
        assert_eq!(classes(&publish(publisher, &messages).await), ["published"; 2]);
    }
    let accepted = queue.accepted().await;
    let of =
        |aggregate: &str| -> Vec<_> { accepted.iter().filter(|(of, _)| of == aggregate).map(|(_, id)| *id).collect() };
    assert_eq!(of("a"), [5, 1, 7, 4]);
    assert_eq!(of("b"), [9, 2, 3, 8]);
    assert_eq!(accepted.len(), 8);
}

async fn a_bad_message_does_not_harm_its_neighbours(publisher: &impl Publisher, queue: &impl Accepted, bad: Message) {
    let mut messages = one_each(1..=9);
    messages.insert(4, bad);
    let mut expected = ["published"; 10];
    expected[4] = "permanent";
    assert_eq!(classes(&publish(publisher, &messages).await), expected);
    let accepted = queue.accepted().await;
    for id in 1..=9 {
        assert!(accepted.contains(&(format!("order-{id}"), id)), "{id} is missing in {accepted:?}");
    }
    assert_eq!(accepted.len(), 9);
}

async fn the_same_message_published_again_is_published_again(publisher: &impl Publisher) {
    let messages = [claimed(1, "order-1", "{}")];
    for _ in 0..3 {
        assert_eq!(classes(&publish(publisher, &messages).await), ["published"]);
    }
}

async fn a_request_filled_to_the_limits_is_accepted_whole(publisher: &impl Publisher) {
    let payload = format!("\"{}\"", "x".repeat(104_000));
    let waiting: Vec<_> = (1..=20).map(|id| claimed(id, &format!("order-{id}"), &payload)).collect();
    let destination = destination_of(publisher, &waiting);
    let limits = publisher.limits(&destination);
    let taken = limits.fit(waiting.iter().map(|message| publisher.size(message)));
    assert!((2..=10).contains(&taken));
    let sizes: usize = waiting[..taken].iter().map(|message| publisher.size(message)).sum();
    assert!(sizes >= taken * payload.len() && sizes <= limits.bytes);
    assert_eq!(classes(&publisher.publish(&destination, &waiting[..taken]).await), vec!["published"; taken]);
}

mod recording {
    use super::*;

    fn refusing(bad: &Message) -> RecordingPublisher {
        let publisher = RecordingPublisher::new();
        let refusal = Outcome::Permanent { error: "scripted".into() };
        publisher.script(bad.id, std::iter::repeat_n(refusal, 3));
        publisher
    }

    #[tokio::test]
    async fn each_message_gets_one_outcome_in_the_order_given() {
        let bad = unsendable(99, "order-99");
        super::each_message_gets_one_outcome_in_the_order_given(&refusing(&bad), bad).await;
    }

    #[tokio::test]
    async fn successive_publishes_are_accepted_in_order_per_aggregate() {
        let publisher = RecordingPublisher::new();
        super::successive_publishes_are_accepted_in_order_per_aggregate(&publisher, &publisher).await;
    }

    #[tokio::test]
    async fn a_bad_message_does_not_harm_its_neighbours() {
        let bad = unsendable(99, "order-99");
        let publisher = refusing(&bad);
        super::a_bad_message_does_not_harm_its_neighbours(&publisher, &publisher, bad).await;
    }

    #[tokio::test]
    async fn the_same_message_published_again_is_published_again() {
        super::the_same_message_published_again_is_published_again(&RecordingPublisher::new()).await;
    }

    #[tokio::test]
    async fn a_request_filled_to_the_limits_is_accepted_whole() {
        super::a_request_filled_to_the_limits_is_accepted_whole(&RecordingPublisher::new()).await;
    }
}

mod sqs {
    use super::*;

    #[tokio::test]
    async fn each_message_gets_one_outcome_in_the_order_given() {
        for server in Server::ALL {
            let queue = Queue::fifo_on(server, 1 << 20).await;
            let bad = unsendable(99, "order-99");
            super::each_message_gets_one_outcome_in_the_order_given(&publisher_to(&queue).await, bad).await;
        }
    }

    #[tokio::test]
    async fn successive_publishes_are_accepted_in_order_per_aggregate() {
        for server in Server::ALL {
            let queue = Queue::fifo_on(server, 1 << 20).await;
            super::successive_publishes_are_accepted_in_order_per_aggregate(&publisher_to(&queue).await, &queue).await;
        }
    }

    // C10
    #[tokio::test]
    async fn a_bad_message_does_not_harm_its_neighbours() {
        for server in Server::ALL {
            let queue = Queue::fifo_on(server, 1 << 20).await;
            let bad = unsendable(99, "order-99");
            super::a_bad_message_does_not_harm_its_neighbours(&publisher_to(&queue).await, &queue, bad).await;
        }
    }

    #[tokio::test]
    async fn the_same_message_published_again_is_published_again() {
        for server in Server::ALL {
            let queue = Queue::fifo_on(server, 1 << 20).await;
            super::the_same_message_published_again_is_published_again(&publisher_to(&queue).await).await;
        }
    }

    #[tokio::test]
    async fn a_request_filled_to_the_limits_is_accepted_whole() {
        for server in Server::ALL {
            let queue = Queue::fifo_on(server, 1 << 20).await;
            super::a_request_filled_to_the_limits_is_accepted_whole(&publisher_to(&queue).await).await;
        }
    }
}
