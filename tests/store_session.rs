//! A session keeps its connection, and lets go of a bad one.

mod support;

use ordered_outbox::Store;
use support::{Database, ids, request, seed};

/// Backend and last statement of each connection on which a statement of ours was the last.
async fn ours(store: &Store) -> Vec<(i32, String)> {
    sqlx::query_as(
        "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '-- Called by %' \
         ORDER BY pid",
    )
    .fetch_all(store.pool())
    .await
    .unwrap()
}

/// A pool would send a statement of its own after each of ours.
#[tokio::test]
async fn a_session_sends_nothing_but_its_statements_on_one_connection() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e"), ("a", "e")]).await;
    let mut session = store.session();
    assert_eq!(ids(&session.claim(&request("w", 10)).await.unwrap().messages), [1]);
    let [(pid, last)] = &ours(&store).await[..] else { panic!("one connection is kept") };
    assert!(last.starts_with("-- Called by Store::claim."), "{last}");
    assert_eq!(session.release(&[support::untried(1, 1)]).await.unwrap().len(), 1);
    let [(same, last)] = &ours(&store).await[..] else { panic!("one connection is kept") };
    assert!(same == pid && last.starts_with("-- Called by Store::release."), "{last}");
    session.rest();
    support::eventually("the connection is back in the pool", || async {
        store.pool().num_idle() == store.pool().size() as usize
    })
    .await;
}

#[tokio::test]
async fn a_session_whose_connection_was_cut_fails_once_and_goes_on_with_another() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e")]).await;
    let mut session = store.session();
    session.claim(&request("w", 1)).await.unwrap();
    session.release(&[support::untried(1, 1)]).await.unwrap();
    let [(pid, _)] = ours(&store).await[..] else { panic!("one connection is kept") };
    let cut: bool =
        sqlx::query_scalar("SELECT pg_terminate_backend($1, 10000)").bind(pid).fetch_one(store.pool()).await.unwrap();
    assert!(cut);
    assert!(session.claim(&request("w", 1)).await.unwrap_err().to_string().starts_with("claim: "));
    assert_eq!(ids(&session.claim(&request("w", 1)).await.unwrap().messages), [1]);
}

/// Several dispatchers on one small pool would otherwise wait for each other.
#[tokio::test]
async fn a_session_keeps_nothing_where_the_pool_has_none_to_spare() {
    let database = Database::new().await;
    let store = Store::connect(database.url(), 1).await.unwrap();
    seed(&store, &[("a", "e"), ("b", "e")]).await;
    let (mut one, mut other) = (store.session(), store.session());
    for _ in 0..3 {
        one.claim(&request("w", 1)).await.unwrap();
        other.claim(&request("w", 1)).await.unwrap();
    }
    assert!(one.is_resting() && other.is_resting());
}

#[tokio::test]
async fn a_pool_that_is_closed_gets_its_connection_back_with_the_next_statement() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e"), ("b", "e")]).await;
    let mut session = store.session();
    assert_eq!(ids(&session.claim(&request("w", 1)).await.unwrap().messages), [1]);
    let pool = store.pool().clone();
    let closing = tokio::spawn(async move { pool.close().await });
    support::eventually("it is closed", || async { store.pool().is_closed() }).await;
    assert!(session.claim(&request("w", 1)).await.is_err());
    closing.await.unwrap();
}
