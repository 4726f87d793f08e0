//! Rows that a raw INSERT put past every check at the producer: what can be sent is sent as it is, what cannot is dead at
//! the first try with the reason, and its neighbours do not notice.

use aws_sdk_sqs::types::QueueAttributeName;
use ordered_outbox::publisher::SqsPublisher;
use ordered_outbox::publisher::sqs::Routes;
use ordered_outbox::{Dispatcher, Store};
use tokio_util::sync::CancellationToken;

use crate::{Outbox, QUEUE, quick};

async fn insert(store: &Store, aggregate_type: &str, aggregate_id: &str, payload_bytes: usize) {
    // the quotes count: the payload is a JSON string
    let payload = format!("\"{}\"", "x".repeat(payload_bytes - 2));
    sqlx::query(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, $2, 'e', $3::jsonb)",
    )
    .bind(aggregate_type)
    .bind(aggregate_id)
    .bind(payload)
    .execute(store.pool())
    .await
    .unwrap();
}

/// Aggregate, status, attempts and error of every row, by id.
async fn found(store: &Store) -> Vec<(String, String, i32, String)> {
    let sql = "SELECT aggregate_id, status, attempts, coalesce(last_error, '') FROM outbox ORDER BY id";
    sqlx::query_as(sql).fetch_all(store.pool()).await.unwrap()
}

async fn drain(outbox: &Outbox) {
    let publisher = outbox.publisher(quick().publish_timeout).await;
    let dispatcher = Dispatcher::new(outbox.store.clone(), publisher, quick()).unwrap();
    dispatcher.drain(CancellationToken::new()).await.unwrap();
}

// C13
#[tokio::test]
async fn ten_rows_of_200_kb_are_sent_in_two_requests_of_at_most_a_mebibyte() {
    let outbox = Outbox::new().await;
    for n in 0..10 {
        insert(&outbox.store, "order", &format!("order-{n}"), 200_000).await;
    }
    drain(&outbox).await;
    outbox.assert_untouched_by_it().await;
    let bytes: Vec<_> = outbox.sqs.arrivals().iter().map(|request| request.bytes).collect();
    assert!(bytes.len() == 2 && bytes.iter().all(|bytes| *bytes <= 1 << 20), "{bytes:?}");
}

// C14
#[tokio::test]
async fn a_row_of_300_kib_goes_to_a_queue_of_1_mib_and_is_dead_at_the_first_try_at_one_of_256_kib() {
    let outbox = Outbox::new().await;
    let narrow = outbox.sqs.create("narrow.fifo", &[(QueueAttributeName::MaximumMessageSize, "262144")]);
    insert(&outbox.store, "wide", "wide-1", 300 << 10).await;
    insert(&outbox.store, "narrow", "narrow-1", 300 << 10).await;
    let routes = [("wide".to_owned(), outbox.sqs.url(QUEUE)), ("narrow".to_owned(), narrow)];
    let routes = Routes::ByAggregateType(routes.into());
    let publisher =
        SqsPublisher::connect_at(&outbox.sqs.endpoint(), routes, "test", quick().publish_timeout).await.unwrap();
    let dispatcher = Dispatcher::new(outbox.store.clone(), publisher, quick()).unwrap();
    dispatcher.drain(CancellationToken::new()).await.unwrap();
    let [wide, narrow] = &found(&outbox.store).await[..] else { panic!("two rows") };
    assert_eq!((wide.1.as_str(), wide.2), ("done", 1));
    assert_eq!((narrow.1.as_str(), narrow.2), ("dead", 1));
    assert!(narrow.3.contains("307") && narrow.3.contains("262144"), "{}", narrow.3);
    assert_eq!(outbox.sqs.delivered().into_iter().collect::<Vec<_>>(), [("wide-1".to_owned(), vec![1])]);
}

// C15
#[tokio::test]
async fn one_row_too_large_among_nine_good_ones_is_dead_and_the_nine_are_delivered() {
    let outbox = Outbox::new().await;
    for n in 0..10 {
        insert(&outbox.store, "order", &format!("order-{n}"), if n == 4 { (1 << 20) + 1 } else { 100 }).await;
    }
    drain(&outbox).await;
    for (place, (_, status, attempts, error)) in found(&outbox.store).await.iter().enumerate() {
        let is_large = place == 4;
        assert_eq!((status.as_str(), *attempts), (if is_large { "dead" } else { "done" }, 1));
        assert_eq!(error.contains("1048576"), is_large, "{error}");
    }
    assert_eq!(outbox.sqs.delivered().len(), 9);
}

// C18
#[tokio::test]
async fn an_aggregate_id_inserted_raw_is_sent_as_it_is_or_dead_at_the_first_try_and_never_changed() {
    let outbox = Outbox::new().await;
    let legal = ["a".repeat(128), "order-1!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~".to_owned()];
    let illegal =
        ["a".repeat(129), "a".repeat(400), "order 1".to_owned(), "order-\u{1F600}".to_owned(), "größe".to_owned()];
    for aggregate_id in legal.iter().chain(&illegal) {
        insert(&outbox.store, "order", aggregate_id, 100).await;
        insert(&outbox.store, "order", aggregate_id, 100).await;
    }
    drain(&outbox).await;
    let rows = found(&outbox.store).await;
    let ids: Vec<_> = rows.chunks(2).map(|pair| pair[0].0.clone()).collect();
    assert_eq!(ids, legal.iter().chain(&illegal).cloned().collect::<Vec<_>>());
    for pair in rows.chunks(2) {
        let [(id, first, attempts, error), (_, second, untried, _)] = pair else { panic!("two of each") };
        if legal.contains(id) {
            assert_eq!((first.as_str(), second.as_str()), ("done", "done"), "{id}");
        } else {
            assert_eq!((first.as_str(), *attempts, second.as_str(), *untried), ("dead", 1, "pending", 0), "{id}");
            assert!(error.starts_with("SQS cannot take this message: aggregate_id"), "{error}");
        }
    }
    let groups: Vec<_> = outbox.sqs.delivered().into_keys().collect();
    let mut expected = legal.to_vec();
    expected.sort_unstable();
    assert_eq!(groups, expected);
}
