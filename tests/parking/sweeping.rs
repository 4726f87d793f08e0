//! A sweep finds what a change by hand left parked, and nothing else.

use sqlx::Connection as _;

use crate::statement::{SKIP, Statement, UNPARK_NEXT, only_ids, stranded};
use crate::support::{Postgres, execute, rows};
use crate::{claim, claimed, connect, deliver, done, finalize, kill_heads, outbox, park, parked, sweep};

#[tokio::test]
async fn a_sweep_never_reports_a_head_that_a_finalize_in_flight_makes_ready() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a", "b", "b"]).await;
        assert_eq!(park(&store).await, 2);
        let [a1, b3] = &claim(&store).await[..] else { panic!() };
        let mut finalizer = connect(&database).await;
        let mut finalizing = finalizer.begin().await.unwrap();
        assert_eq!(only_ids(&Statement::done(a1).run(&mut finalizing).await), [1]);
        assert_eq!(sweep(&store).await, [0; 0]);
        let held_up = Statement::sweep(10).hold_up(&database, &store).await;
        finalizing.commit().await.unwrap();
        finalize(&store, done(b3)).await;
        assert_eq!(stranded(&held_up.go_on().await), [0; 0], "it began before either was done");
        assert_eq!((parked(&store).await, sweep(&store).await), (vec![], vec![]));
        assert_eq!(claimed(&store).await, [2, 4]);
    }
}

#[tokio::test]
async fn a_sweep_never_reports_a_head_that_a_skip_in_flight_makes_ready() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "a"]).await;
        kill_heads(&store).await;
        assert_eq!(park(&store).await, 1);
        let mut person = connect(&database).await;
        let mut skipping = person.begin().await.unwrap();
        let skip = Statement::new(SKIP).with(1_i64).with(1_i64).with("not needed");
        assert_eq!(only_ids(&skip.run(&mut skipping).await), [1]);
        assert_eq!(sweep(&store).await, [0; 0]);
        assert_eq!(only_ids(&Statement::new(UNPARK_NEXT).with(1_i64).run(&mut skipping).await), [2]);
        let held_up = Statement::sweep(10).hold_up(&database, &store).await;
        skipping.commit().await.unwrap();
        assert_eq!(stranded(&held_up.go_on().await), [0; 0]);
        assert_eq!((sweep(&store).await, claimed(&store).await), (vec![], vec![2]));
    }
}

#[tokio::test]
async fn one_sweep_runs_at_a_time_in_a_database_and_each_head_is_reported_once() {
    for (postgres, _) in Postgres::all() {
        let (database, store) = outbox(postgres, &["a", "b", "c"]).await;
        execute(&store, "UPDATE outbox SET parked = true").await;
        let mut other = connect(&database).await;
        let mut sweeping = other.begin().await.unwrap();
        assert_eq!(stranded(&Statement::sweep(1).run(&mut sweeping).await), [1]);
        let meanwhile = store.sweep("", 10).await.unwrap();
        assert_eq!((meanwhile.stranded, meanwhile.reached), (vec![], None), "b and c are free, and not its turn");
        sweeping.commit().await.unwrap();
        let held_up = Statement::sweep(10).hold_up(&database, &store).await;
        assert_eq!(sweep(&store).await, [2, 3]);
        assert_eq!(stranded(&held_up.go_on().await), [0; 0], "they were stranded when it began");
        assert_eq!(claimed(&store).await, [1, 2, 3]);
    }
}

#[tokio::test]
async fn a_sweep_goes_from_aggregate_to_aggregate_in_steps_and_past_those_that_wait_rightly() {
    for (postgres, _) in Postgres::all() {
        let aggregates = ["a", "a", "B", "B", "~", "a-", "a-", "aa"];
        let (_database, store) = outbox(postgres, &aggregates).await;
        execute(&store, "UPDATE outbox SET parked = true WHERE id IN (2, 4, 5, 6, 7, 8)").await;
        let (mut after, mut found) = (String::new(), Vec::new());
        loop {
            let swept = store.sweep(&after, 2).await.unwrap();
            found.push(swept.stranded);
            let Some(reached) = swept.reached else { break };
            after = reached;
        }
        assert_eq!(found, [vec![], vec![6, 8], vec![5]], "B a, a- aa, ~");
        assert_eq!((parked(&store).await, sweep(&store).await), (vec![2, 4, 7], vec![]));
        assert_eq!(deliver(&store).await.len(), 8);
    }
}

#[tokio::test]
async fn a_head_that_was_stranded_becomes_due_as_of_now_and_a_scheduled_one_keeps_its_time() {
    let (_database, store) = outbox(Postgres::Latest, &["a", "b"]).await;
    execute(&store, "UPDATE outbox SET parked = true, available_at = now() - interval '1 day' WHERE id = 1").await;
    execute(&store, "UPDATE outbox SET parked = true, available_at = now() + interval '1 day' WHERE id = 2").await;
    assert_eq!(sweep(&store).await, [1, 2]);
    let ages: Vec<f64> =
        sqlx::query_scalar("SELECT extract(epoch FROM now() - available_at)::float8 FROM outbox ORDER BY id")
            .fetch_all(store.pool())
            .await
            .unwrap();
    assert!((0.0..3_600.0).contains(&ages[0]) && ages[1] < -80_000.0, "{ages:?}");
    assert_eq!(claimed(&store).await, [1]);
}

#[tokio::test]
async fn a_head_that_somebody_has_locked_is_left_to_the_next_sweep() {
    let (database, store) = outbox(Postgres::Latest, &["a", "b"]).await;
    execute(&store, "UPDATE outbox SET parked = true").await;
    let mut person = connect(&database).await;
    let mut holding = person.begin().await.unwrap();
    sqlx::query("SELECT FROM outbox WHERE id = 1 FOR UPDATE").execute(&mut *holding).await.unwrap();
    assert_eq!(sweep(&store).await, [2]);
    holding.rollback().await.unwrap();
    assert_eq!(sweep(&store).await, [1]);
    assert!(rows(&store).await.iter().all(|(_, status, _)| status == "pending"));
}
