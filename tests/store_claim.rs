//! Claims: who gets what, and in which order.

mod support;

use support::{Database, ids, request, seed};

#[tokio::test]
async fn a_claim_takes_only_the_head_of_each_aggregate() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded =
        seed(&store, &[("order-x", "a"), ("order-x", "b"), ("order-y", "a"), ("order-x", "c"), ("order-y", "b")]).await;
    let claimed = store.claim(&request("w1", 10)).await.unwrap();
    assert_eq!(ids(&claimed), [seeded[0], seeded[2]]);
    assert_eq!(store.claim(&request("w2", 10)).await.unwrap(), []);
}
