//! What SQS adds to the contract, on LocalStack and on the SQS that can be broken.

use std::collections::BTreeMap;

use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use ordered_outbox::publisher::sqs::{Routes, SqsPublisher};
use ordered_outbox::{Outcome, Publisher as _};

use crate::support::queue::{Queue, Server};
use crate::{PUBLISH_TIMEOUT, claimed, classes, ids_of, one_each, publish, publisher_named, publisher_to, unsendable};

fn broker_words(outcome: &Outcome) -> (String, String) {
    match outcome {
        Outcome::Published { broker_message_id: Some(id), broker_sequence: Some(sequence) } => {
            (id.clone(), sequence.clone())
        }
        other => panic!("not published with id and sequence: {other:?}"),
    }
}

fn reason(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Permanent { error } => error,
        other => panic!("not permanent: {other:?}"),
    }
}

#[tokio::test]
async fn a_message_carries_its_group_its_deduplication_id_and_its_attributes_and_nothing_else() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_named("src", &queue).await;
        let mut message = claimed(42, "order-7", r#"{"a": 1}"#);
        message.headers_json = r#"{"traceparent": "00-ab-cd-01", "note": "größe \"x\"", "n": 9007199254740993}"#.into();
        let outcomes = publish(&publisher, &[message]).await;
        let received = queue.receive_all().await;
        let [received] = received.as_slice() else { panic!("{received:?}") };
        assert_eq!(received.group, "order-7");
        assert_eq!(received.deduplication_id, "src-42");
        assert_eq!((received.message_id.clone(), received.sequence.clone()), broker_words(&outcomes[0]));
        let attributes: BTreeMap<_, _> = [
            ("outbox-id", "Number", "42"),
            ("event-type", "String", "OrderPlaced"),
            ("aggregate-type", "String", "order"),
            ("n", "String", "9007199254740993"),
            ("note", "String", "größe \"x\""),
            ("traceparent", "String", "00-ab-cd-01"),
        ]
        .map(|(name, kind, value)| (name.to_owned(), (kind.to_owned(), value.to_owned())))
        .into();
        assert_eq!(received.attributes, attributes);
    }
}

// C33
#[tokio::test]
async fn a_body_is_the_payload_byte_for_byte() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_to(&queue).await;
        let payloads = [
            r#"{"n": 9007199254740993}"#,
            r#"{"n": 0.123456789012345678901234567890}"#,
            "[1e400, -0.0, 1E+2]",
            "{ \"b\" :1,\t\"a\":  [ ] }\r\n",
            r#"{"text": "größe 🎁 \u00e9 \\ \" <&>"}"#,
            "null",
        ];
        for (payload, id) in payloads.iter().zip(1..) {
            assert_eq!(classes(&publish(&publisher, &[claimed(id, "order-1", payload)]).await), ["published"]);
        }
        let bodies: Vec<_> = queue.receive_all().await.into_iter().map(|message| message.body).collect();
        assert_eq!(bodies, payloads);
    }
}

// P9
#[tokio::test]
async fn a_message_sent_again_is_delivered_once_and_confirmed_with_the_same_message_id() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_to(&queue).await;
        let first = publish(&publisher, &one_each(1..=3)).await;
        let again = publish(&publisher, &one_each(1..=3)).await;
        let message_ids = |outcomes: &[Outcome]| outcomes.iter().map(|o| broker_words(o).0).collect::<Vec<_>>();
        assert_eq!(message_ids(&again), message_ids(&first));
        assert_eq!(queue.receive_all().await.len(), 3);
        // also after the copy was consumed
        assert_eq!(message_ids(&publish(&publisher, &one_each(1..=3)).await), message_ids(&first));
        assert_eq!(queue.receive_all().await, []);
    }
}

// C16
#[tokio::test]
async fn two_messages_with_one_payload_are_both_delivered() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_to(&queue).await;
        for id in [1, 2] {
            assert_eq!(classes(&publish(&publisher, &[claimed(id, "order-1", "{}")]).await), ["published"]);
        }
        assert_eq!(ids_of(&queue.receive_all().await), [1, 2]);
    }
}

// C17
#[tokio::test]
async fn two_outboxes_with_the_same_ids_lose_nothing_on_one_queue() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        for source in ["east", "west"] {
            let publisher = publisher_named(source, &queue).await;
            for id in 1..=3 {
                let message = claimed(id, &format!("{source}-order"), "{}");
                assert_eq!(classes(&publish(&publisher, &[message]).await), ["published"]);
            }
        }
        let received = queue.receive_all().await;
        for source in ["east", "west"] {
            let of_source: Vec<_> =
                received.iter().filter(|message| message.group.starts_with(source)).cloned().collect();
            assert_eq!(ids_of(&of_source), [1, 2, 3], "{source}");
        }
        assert_eq!(received.len(), 6);
    }
}

// C13
#[tokio::test]
async fn ten_messages_of_200_kb_go_in_two_requests_and_all_arrive() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_to(&queue).await;
        let payload = format!("\"{}\"", "x".repeat(200_000));
        let messages: Vec<_> = (1..=10).map(|id| claimed(id, &format!("order-{id}"), &payload)).collect();
        let limits = publisher.limits(&publisher.destination(&messages[0]).unwrap());
        let (mut rest, mut requests) = (messages.as_slice(), Vec::new());
        while !rest.is_empty() {
            let (request, later) = rest.split_at(limits.fit(rest.iter().map(|message| publisher.size(message))));
            assert_eq!(classes(&publish(&publisher, request).await), vec!["published"; request.len()]);
            requests.push(request.len());
            rest = later;
        }
        assert_eq!(requests, [5, 5]);
        let received = queue.receive_all().await;
        for id in 1..=10 {
            assert!(received.iter().any(|message| message.outbox_id() == id && message.body == payload), "{id}");
        }
        assert_eq!(received.len(), 10);
    }
}

// C13: a caller that asks for more than a request can carry loses nothing either
#[tokio::test]
async fn a_request_that_is_too_long_for_sqs_is_sent_one_by_one() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_to(&queue).await;
        let payload = format!("\"{}\"", "x".repeat(200_000));
        let messages: Vec<_> = (1..=10).map(|id| claimed(id, &format!("order-{id}"), &payload)).collect();
        assert_eq!(classes(&publish(&publisher, &messages).await), ["published"; 10]);
        assert_eq!(classes(&publish(&publisher, &one_each(11..=22)).await), ["published"; 12]);
        assert_eq!(queue.receive_all().await.len(), 22);
    }
}

// C14
#[tokio::test]
async fn a_message_of_300_kib_goes_to_a_queue_of_1_mib_and_is_dead_at_one_of_256_kib() {
    for server in Server::ALL {
        let message = claimed(1, "order-1", &format!("\"{}\"", "x".repeat(300 * 1024 - 2)));
        let large = Queue::fifo_on(server, 1 << 20).await;
        assert_eq!(classes(&publish(&publisher_to(&large).await, std::slice::from_ref(&message)).await), ["published"]);
        assert_eq!(ids_of(&large.receive_all().await), [1]);

        let small = Queue::fifo_on(server, 262_144).await;
        let publisher = publisher_to(&small).await;
        let destination = publisher.destination(&message).unwrap();
        assert_eq!(publisher.limits(&destination).bytes, 262_144);
        let size = publisher.size(&message);
        let outcomes = publish(&publisher, &[message]).await;
        let expected = format!("SQS cannot take this message: {size} bytes with attributes: the queue takes 262144");
        assert_eq!(reason(&outcomes[0]), expected);
        assert!(size > 300 * 1024);
        assert_eq!(small.receive_all().await, []);
    }
}

#[tokio::test]
async fn a_message_of_exactly_the_limit_is_accepted_by_the_queue() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 262_144).await;
        let publisher = publisher_to(&queue).await;
        let mut message = claimed(1, "order-1", "");
        message.headers_json = r#"{"trace": "é"}"#.into();
        let payload = format!("\"{}\"", "é".repeat((262_144 - publisher.size(&message)) / 2 - 1));
        message.payload = format!("{payload}{}", " ".repeat((262_144 - publisher.size(&message)) - payload.len()));
        assert_eq!(publisher.size(&message), 262_144);
        assert_eq!(classes(&publish(&publisher, &[message]).await), ["published"]);
    }
}

// C15
#[tokio::test]
async fn one_oversize_message_among_nine_good_ones_is_dead_alone() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 262_144).await;
        let mut messages = one_each(1..=10);
        messages[6].payload = format!("\"{}\"", "x".repeat(262_144));
        let outcomes = publish(&publisher_to(&queue).await, &messages).await;
        let mut expected = ["published"; 10];
        expected[6] = "permanent";
        assert_eq!(classes(&outcomes), expected);
        let received = queue.receive_all().await;
        assert!(received.iter().all(|message| message.outbox_id() != 7));
        assert_eq!(received.len(), 9);
    }
}

// C18
#[tokio::test]
async fn an_aggregate_id_is_sent_as_it_is_or_dead_with_the_reason() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_to(&queue).await;
        let longest = "a".repeat(128);
        let ids = [
            &*longest,
            &*"b".repeat(129),
            &*"c".repeat(400),
            "order 1",
            "order-🎁",
            "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
        ];
        let messages: Vec<_> = ids.iter().zip(1..).map(|(aggregate, id)| claimed(id, aggregate, "{}")).collect();
        let outcomes = publish(&publisher, &messages).await;
        assert_eq!(classes(&outcomes), ["published", "permanent", "permanent", "permanent", "permanent", "published"]);
        assert!(reason(&outcomes[1]).contains("129 characters"));
        assert!(reason(&outcomes[2]).contains("400 characters"));
        assert!(reason(&outcomes[3]).contains("' '"));
        assert!(reason(&outcomes[4]).contains("'🎁'"));
        let received = queue.receive_all().await;
        for aggregate in [ids[0], ids[5]] {
            assert!(received.iter().any(|message| message.group == aggregate), "{aggregate}");
        }
        assert_eq!(received.len(), 2);
    }
}

// C10: SQS itself refuses one entry. LocalStack takes attribute names of 255 bytes at most, SQS and preflight 256
#[tokio::test]
async fn an_entry_that_the_queue_refuses_is_dead_alone_with_its_words() {
    let queue = Queue::fifo().await;
    let mut messages = one_each(1..=3);
    messages[1].headers_json = format!(r#"{{"{}": "v"}}"#, "n".repeat(256));
    let outcomes = publish(&publisher_to(&queue).await, &messages).await;
    assert_eq!(classes(&outcomes), ["published", "permanent", "published"]);
    assert!(reason(&outcomes[1]).starts_with("SQS refused this message: InvalidParameterValue"), "{outcomes:?}");
    let received = queue.receive_all().await;
    assert!(received.iter().all(|message| message.outbox_id() != 2));
    assert_eq!(received.len(), 2);
}

#[tokio::test]
async fn where_no_message_can_be_sent_no_request_is_made() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_to(&queue).await;
        queue.delete().await;
        // the queue would answer otherwise
        let outcomes = publish(&publisher, &[unsendable(1, "order-1"), unsendable(2, "order-2")]).await;
        assert_eq!(classes(&outcomes), ["permanent", "permanent"]);
    }
}

// C22
#[tokio::test]
async fn a_queue_deleted_while_running_is_an_outage_and_works_again_once_it_is_back() {
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let publisher = publisher_to(&queue).await;
        queue.delete().await;
        let outcomes = publish(&publisher, &one_each(1..=2)).await;
        assert_eq!(classes(&outcomes), ["unavailable", "unavailable"]);
        assert!(format!("{:?}", outcomes[0]).contains("NonExistentQueue"), "{outcomes:?}");
        queue.create_again().await;
        assert_eq!(classes(&publish(&publisher, &one_each(1..=2)).await), ["published", "published"]);
        assert_eq!(queue.receive_all().await.len(), 2);
    }
}

#[tokio::test]
async fn messages_are_routed_by_aggregate_type_and_one_without_a_route_has_no_destination() {
    let (orders, payments) = (Queue::fifo().await, Queue::fifo().await);
    let routes = [("order", &orders), ("payment", &payments)];
    let routes = Routes::ByAggregateType(routes.map(|(kind, queue)| (kind.to_owned(), queue.url().to_owned())).into());
    let publisher = SqsPublisher::connect(routes, "test", PUBLISH_TIMEOUT).await.unwrap();
    let of = |kind: &str| {
        let mut message = claimed(1, "x-1", "{}");
        message.aggregate_type = kind.into();
        message
    };
    for kind in ["order", "payment"] {
        assert_eq!(classes(&publish(&publisher, &[of(kind)]).await), ["published"]);
    }
    assert_eq!(publisher.destination(&of("refund")), None);
    for (queue, kind) in [(&orders, "order"), (&payments, "payment")] {
        let received = queue.receive_all().await;
        let kinds: Vec<_> = received.iter().map(|message| message.attributes["aggregate-type"].1.as_str()).collect();
        assert_eq!(kinds, [kind]);
    }
}

#[tokio::test]
async fn the_queues_of_the_tests_agree_on_checksums_and_copies() {
    let mut replies = Vec::new();
    for server in Server::ALL {
        let queue = Queue::fifo_on(server, 1 << 20).await;
        let attribute = |kind: &str, value: &str| {
            MessageAttributeValue::builder().data_type(kind).string_value(value).build().unwrap()
        };
        let entry = SendMessageBatchRequestEntry::builder()
            .id("first")
            .message_body("größe 🎁")
            .message_group_id("order-1")
            .message_deduplication_id("1")
            .message_attributes("outbox-id", attribute("Number", "42"))
            .message_attributes("note", attribute("String", "größe"))
            .build()
            .unwrap();
        let send = async || {
            let request = queue.client().send_message_batch().queue_url(queue.url()).entries(entry.clone());
            request.send().await.unwrap().successful.pop().unwrap()
        };
        let (first, again) = (send().await, send().await);
        assert_eq!(first.message_id, again.message_id);
        replies.push((first.id, first.md5_of_message_body, first.md5_of_message_attributes));
        let received = queue.receive_all().await;
        assert_eq!((received.len(), received[0].body.as_str()), (1, "größe 🎁"));
    }
    assert_eq!(replies[0], replies[1]);
    assert!(replies[0].2.is_some());
}
