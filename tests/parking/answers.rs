//! A person's answer to a gate, and a parker at it.

use ordered_outbox::Store;
use ordered_outbox::store::Finalized;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, Executor as _};

use crate::statement::{RETRY, SKIP, Statement, UNPARK_NEXT, only_ids, rows_parked, waits};
use crate::support::{Database, Postgres, execute, rows};
use crate::{claim, claimed, connect, deliver, done, finalize, kill_heads, outbox, park, parked, sweep};

/// A store whose pool an application made, with another default than ours.
async fn with_isolation(database: &Database, isolation: &'static str) -> Store {
    let pool = PgPoolOptions::new().max_connections(4).after_connect(move |connection, _| {
        let sql = format!("SET default_transaction_isolation = '{isolation}'");
        Box::pin(async move { connection.execute(sqlx::AssertSqlSafe(sql)).await.map(|_| ()) })
    });
    Store::new(pool.connect(database.url()).await.unwrap())
}

/// "Could not serialize access": repeat it.
fn is_conflict(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("40001"))
}

#[tokio::test]
async fn a_skip_waits_for_a_parker_at_its_gate_and_makes_the_row_ready_that_was_parked_then() {
    for (postgres, _) in Postgres::all() {
        for isolation in ["read committed", "repeatable read", "serializable"] {
            let (database, store) = outbox(postgres, &["a", "a", "a"]).await;
            kill_heads(&store).await;
            let mut parker = connect(&database).await;
            let mut parking = parker.begin().await.unwrap();
            assert_eq!(rows_parked(&Statement::park().run(&mut parking).await), 2);
            let person = with_isolation(&database, isolation).await;
            let skip = tokio::spawn(async move { person.skip(1, "not needed").await });
            waits(&store, "transactionid").await;
            assert_eq!(rows(&store).await[0].1, "dead");
            parking.commit().await.unwrap();
            skip.await.unwrap().unwrap();
            assert_eq!((parked(&store).await, sweep(&store).await), (vec![3], vec![]), "{isolation}");
            assert_eq!(deliver(&store).await, [2, 3]);
        }
    }
}

#[tokio::test]
async fn a_parker_passes_over_a_gate_that_is_being_skipped() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        kill_heads(&store).await;
        let mut person = connect(&database).await;
        let mut skipping = person.begin().await.unwrap();
        let skip = Statement::new(SKIP).with(1_i64).with(1_i64).with("not needed");
        assert_eq!(only_ids(&skip.run(&mut skipping).await), [1]);
        assert_eq!((park(&store).await, sweep(&store).await), (0, vec![]));
        assert_eq!(only_ids(&Statement::new(UNPARK_NEXT).with(1_i64).run(&mut skipping).await), [2]);
        assert_eq!((park(&store).await, sweep(&store).await), (0, vec![]));
        skipping.commit().await.unwrap();
        assert_eq!((parked(&store).await, claimed(&store).await), (vec![], vec![2]));
    }
}

#[tokio::test]
async fn a_parker_that_was_held_up_while_its_gate_was_answered_parks_nothing_behind_it() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a", "b", "b"]).await;
        kill_heads(&store).await;
        let parker = Statement::park().hold_up(&database, &store).await;
        store.skip(1, "not needed").await.unwrap();
        store.retry(3).await.unwrap();
        assert_eq!(rows_parked(&parker.go_on().await), 0);
        assert_eq!(claimed(&store).await, [2, 3]);
    }
}

/// Why a dead row is locked: the row behind it is not always changed by what was done meanwhile.
#[tokio::test]
async fn parking_behind_a_gate_without_its_lock_would_strand_the_next_row() {
    let (database, store) = outbox(Postgres::Latest, &["a"]).await;
    kill_heads(&store).await;
    crate::seed(&store, &[("a", "e")]).await;
    let careless = Statement::park().changed("b.status = 'pending' OR gate.status = 'dead'", "true");
    let mut person = connect(&database).await;
    let mut skipping = person.begin().await.unwrap();
    // between the two statements of a skip, if they were one with one snapshot
    let skip = Statement::new(SKIP).with(1_i64).with(1_i64).with("not needed");
    assert_eq!(only_ids(&skip.run(&mut skipping).await), [1]);
    let mut parker = connect(&database).await;
    assert_eq!(rows_parked(&careless.run(&mut parker).await), 1);
    skipping.commit().await.unwrap();
    assert_eq!((claimed(&store).await, sweep(&store).await), (vec![], vec![2]));
}

/// The parker saw the row in front before it died, so that it takes no lock on it.
#[tokio::test]
async fn a_skip_waits_for_a_parker_that_saw_its_row_alive_and_makes_the_next_ready() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        let mut parker = connect(&database).await;
        let mut parking = parker.begin().await.unwrap();
        assert_eq!(rows_parked(&Statement::park().run(&mut parking).await), 1);
        kill_heads(&store).await;
        let person = store.clone();
        let skip = tokio::spawn(async move { person.skip(1, "not needed").await });
        waits(&store, "transactionid").await;
        parking.commit().await.unwrap();
        skip.await.unwrap().unwrap();
        assert_eq!((parked(&store).await, claimed(&store).await), (vec![], vec![2]));
    }
}

#[tokio::test]
async fn a_parker_that_saw_a_row_alive_and_is_held_up_until_it_was_skipped_leaves_the_next_ready() {
    let (database, store) = outbox(Postgres::Latest, &["a", "a"]).await;
    let parker = Statement::park().hold_up(&database, &store).await;
    kill_heads(&store).await;
    store.skip(1, "not needed").await.unwrap();
    assert_eq!(rows_parked(&parker.go_on().await), 0);
    assert_eq!(claimed(&store).await, [2]);
}

#[tokio::test]
async fn a_retry_and_a_parker_at_the_same_gate_keep_order_and_strand_nothing() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a", "b", "b"]).await;
        kill_heads(&store).await;
        // the retry comes first
        let mut other = connect(&database).await;
        let mut retrying = other.begin().await.unwrap();
        assert_eq!(only_ids(&Statement::new(RETRY).with(1_i64).with(1_i64).run(&mut retrying).await), [1]);
        assert_eq!(park(&store).await, 1);
        assert_eq!(parked(&store).await, [4]);
        retrying.commit().await.unwrap();
        // the parker comes first
        execute(&store, "UPDATE outbox SET parked = false").await;
        let mut parking = other.begin().await.unwrap();
        assert_eq!(rows_parked(&Statement::park().run(&mut parking).await), 2);
        let person = store.clone();
        let retry = tokio::spawn(async move { person.retry(3).await });
        waits(&store, "transactionid").await;
        parking.commit().await.unwrap();
        retry.await.unwrap().unwrap();
        assert_eq!((parked(&store).await, sweep(&store).await), (vec![2, 4], vec![]));
        assert_eq!(deliver(&store).await, [1, 3, 2, 4]);
    }
}

/// Statements of pools with a stricter default may fail with 40001 and are repeated; they never do half of their work.
#[tokio::test]
async fn under_a_stricter_isolation_a_conflict_is_an_error_and_never_a_wrong_state() {
    for isolation in ["repeatable read", "serializable"] {
        let (database, store) = outbox(Postgres::Latest, &["a", "a"]).await;
        let strict = with_isolation(&database, isolation).await;
        sqlx::query(sqlx::AssertSqlSafe(format!(
            "ALTER DATABASE {} SET default_transaction_isolation = '{isolation}'",
            database.url().rsplit('/').next().unwrap()
        )))
        .execute(store.pool())
        .await
        .unwrap();
        let parker = Statement::park().hold_up(&database, &store).await;
        let a1 = &claim(&strict).await[0];
        assert_eq!(finalize(&strict, done(a1)).await, Finalized::Finalized);
        let error = parker.try_go_on().await.unwrap_err();
        assert!(is_conflict(&error), "{error}");
        assert_eq!((parked(&store).await, sweep(&strict).await), (vec![], vec![]), "{isolation}");

        let a2 = &claim(&strict).await[0];
        let finalizer = Statement::done(a2).hold_up(&database, &store).await;
        crate::seed(&strict, &[("a", "e")]).await;
        assert_eq!(park(&strict).await, 0);
        if let Err(error) = finalizer.try_go_on().await {
            assert!(is_conflict(&error), "{error}");
            assert_eq!(finalize(&strict, done(a2)).await, Finalized::Finalized);
        }
        assert_eq!((deliver(&strict).await, sweep(&strict).await), (vec![3], vec![]));
    }
}

/// As after a finalize: in front of every claimer's position, but not before its time, and only if nobody has it.
#[tokio::test]
async fn a_skip_makes_the_next_row_due_as_of_now_unless_it_is_scheduled_or_leased() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "a", "b", "b", "c", "c"]).await;
    kill_heads(&store).await;
    execute(
        &store,
        "UPDATE outbox SET parked = id <> 6, available_at = now() + CASE id WHEN 4 THEN 1 ELSE -1 END * interval '1 day', \
         status = CASE id WHEN 6 THEN 'processing' ELSE status END, \
         lease_owner = CASE id WHEN 6 THEN 'w' END, lease_until = CASE id WHEN 6 THEN now() + interval '1 hour' END \
         WHERE id IN (2, 4, 6)",
    )
    .await;
    for gate in [1, 3, 5] {
        store.skip(gate, "not needed").await.unwrap();
    }
    let hours: Vec<i32> = sqlx::query_scalar(
        "SELECT round(extract(epoch FROM available_at - now()) / 3600)::integer FROM outbox WHERE id IN (2, 4, 6) ORDER BY id",
    )
    .fetch_all(store.pool())
    .await
    .unwrap();
    assert_eq!(hours, [0, 24, -24]);
    assert_eq!((parked(&store).await, claimed(&store).await), (vec![], vec![2]));
}

/// Somebody else answered meanwhile, and the row died once more: that death nobody has looked at.
#[tokio::test]
async fn an_answer_to_a_death_that_is_over_answers_no_later_one() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        kill_heads(&store).await;
        let looked_at = store.show(1).await.unwrap().unwrap().lease_version;
        store.retry(1).await.unwrap();
        assert_eq!(claimed(&store).await, [1]);
        execute(&store, "UPDATE outbox SET status = 'dead', lease_owner = NULL, lease_until = NULL WHERE id = 1").await;
        let mut person = connect(&database).await;
        let retry = Statement::new(RETRY).with(1_i64).with(looked_at);
        assert!(retry.run(&mut person).await.is_empty());
        let skip = Statement::new(SKIP).with(1_i64).with(looked_at).with("not needed");
        assert!(skip.run(&mut person).await.is_empty());
        assert_eq!(rows(&store).await[0].1, "dead");
    }
}
