//! Claims: who gets what, in which order, and what stops a run.

mod support;

use std::time::Duration;

use futures::future::join_all;
use ordered_outbox::outcome::Verdict;
use ordered_outbox::store::{ClaimRequest, Finalize, Finalized, Release};
use ordered_outbox::{Message, MessageId, Store};
use sqlx::{Connection as _, Row as _};
use support::{Database, Postgres, execute, expire_leases, ids, request, rows, seed};

/// A claim of up to 100 rows, `run_length` of an aggregate.
fn runs(run_length: u32) -> ClaimRequest {
    ClaimRequest { run_length, ..request("w", 100) }
}

async fn claimed(store: &Store, request: &ClaimRequest) -> Vec<MessageId> {
    ids(&store.claim(request).await.unwrap().messages)
}

/// Claims all heads and gives each the same verdict.
async fn finalize_heads(store: &Store, verdict: Verdict) {
    for message in store.claim(&request("w", 100)).await.unwrap().messages {
        let finalize = Finalize::new(&message, verdict.clone());
        assert_eq!(store.finalize(&[finalize]).await.unwrap(), [Finalized::Finalized]);
    }
}

#[tokio::test]
async fn a_claim_extends_each_head_by_its_run_in_order() {
    for (postgres, _) in Postgres::all() {
        let database = Database::on(postgres).await;
        let store = database.store().await;
        let [a1, b1, a2, a3, b2, _a4] = seed(&store, &["a", "b", "a", "a", "b", "a"].map(|a| (a, "e"))).await[..]
        else {
            panic!()
        };
        assert_eq!(claimed(&store, &runs(3)).await, [a1, a2, a3, b1, b2]);
        assert_eq!(claimed(&store, &runs(3)).await, [0; 0], "a4 waits behind a1");
    }
}

#[tokio::test]
async fn a_run_length_of_zero_takes_heads_all_the_same() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, _a2, b1] = seed(&store, &[("a", "e"), ("a", "e"), ("b", "e")]).await[..] else { panic!() };
    assert_eq!(claimed(&store, &runs(0)).await, [a1, b1]);
}

#[tokio::test]
async fn heads_come_before_the_rows_behind_them_when_the_batch_is_short() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, _a2, _a3, b1, _b2, c1] =
        seed(&store, &[("a", "e"), ("a", "e"), ("a", "e"), ("b", "e"), ("b", "e"), ("c", "e")]).await[..]
    else {
        panic!()
    };
    assert_eq!(claimed(&store, &ClaimRequest { batch_size: 3, ..runs(10) }).await, [a1, b1, c1]);
}

#[tokio::test]
async fn rows_behind_heads_are_shared_evenly_by_what_is_left_of_the_batch() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, a2, _a3, b1, b2, _b3] =
        seed(&store, &[("a", "e"), ("a", "e"), ("a", "e"), ("b", "e"), ("b", "e"), ("b", "e")]).await[..]
    else {
        panic!()
    };
    assert_eq!(claimed(&store, &ClaimRequest { batch_size: 4, ..runs(10) }).await, [a1, a2, b1, b2]);
}

// C05
#[tokio::test]
async fn a_run_ends_before_a_row_that_is_not_due_yet_and_that_row_holds_back_the_next() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, a2, a3, b1] = seed(&store, &[("a", "e"), ("a", "e"), ("a", "e"), ("b", "e")]).await[..] else { panic!() };
    execute(&store, "UPDATE outbox SET available_at = now() + interval '1 hour' WHERE id = 2").await;
    assert_eq!(claimed(&store, &runs(10)).await, [a1, b1]);
    execute(
        &store,
        "UPDATE outbox SET status = 'done', done_at = now(), lease_owner = NULL, lease_until = NULL WHERE id = 1",
    )
    .await;
    assert_eq!(claimed(&store, &runs(10)).await, [0; 0]);
    let waits_behind = store.show(a3).await.unwrap().unwrap().waits_behind.unwrap();
    assert_eq!(waits_behind.id, a2);
    assert_eq!(store.stats().await.unwrap().waiting_behind_not_yet_due, 1);
}

/// P3
#[tokio::test]
async fn a_dead_row_gates_its_own_aggregate_and_no_other() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e")]).await;
    finalize_heads(&store, Verdict::Dead { error: "broken".into() }).await;
    let [_a2, b1, _a3, b2] = seed(&store, &[("a", "e"), ("b", "e"), ("a", "e"), ("b", "e")]).await[..] else {
        panic!()
    };
    assert_eq!(claimed(&store, &runs(10)).await, [b1, b2]);
}

#[tokio::test]
async fn a_head_that_has_failed_before_runs_alone() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, _a2, b1, b2] = seed(&store, &[("a", "e"), ("a", "e"), ("b", "e"), ("b", "e")]).await[..] else { panic!() };
    execute(&store, "UPDATE outbox SET attempts = 1 WHERE id = 1").await;
    assert_eq!(claimed(&store, &runs(10)).await, [a1, b1, b2]);
}

#[tokio::test]
async fn a_lease_that_ran_out_is_taken_over_with_a_new_version_and_the_rows_behind_it_wait() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, a2, _a3] = seed(&store, &[("a", "e"), ("a", "e"), ("a", "e")]).await[..] else { panic!() };
    assert_eq!(claimed(&store, &runs(2)).await, [a1, a2]);
    expire_leases(&store).await;
    let taken = store.claim(&runs(10)).await.unwrap().messages;
    assert_eq!(ids(&taken), [a1], "the crash counts as a failed attempt, so a1 runs alone; a2 waits behind it");
    assert_eq!((taken[0].lease_version, taken[0].attempts), (2, 2));
}

/// P3, after a crash: the head of a run died of it, the rows behind it are still leased.
#[tokio::test]
async fn a_lease_that_ran_out_behind_a_dead_head_is_not_taken_over() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, a2, _a3, b1] = seed(&store, &[("a", "e"), ("a", "e"), ("a", "e"), ("b", "e")]).await[..] else { panic!() };
    execute(&store, "UPDATE outbox SET available_at = now() + interval '1 hour' WHERE aggregate_id = 'b'").await;
    assert_eq!(claimed(&store, &runs(2)).await, [a1, a2]);
    expire_leases(&store).await;
    execute(&store, "UPDATE outbox SET attempts = 12 WHERE id = 1").await;
    assert_eq!(store.reap(12, 10).await.unwrap(), [a1]);
    execute(&store, "UPDATE outbox SET available_at = now()").await;
    assert_eq!(claimed(&store, &runs(10)).await, [b1]);
    store.skip(a1, "not needed any more").await.unwrap();
    assert_eq!(claimed(&store, &runs(10)).await, [a2]);
}

/// A dispatcher that was killed held both; the first was taken over, has failed, and is put off.
#[tokio::test]
async fn a_lease_that_ran_out_behind_a_head_that_was_put_off_is_not_taken_over() {
    for (postgres, _) in Postgres::all() {
        let database = Database::on(postgres).await;
        let store = database.store().await;
        let [a1, a2] = seed(&store, &[("a", "e"), ("a", "e")]).await[..] else { panic!() };
        assert_eq!(claimed(&store, &runs(2)).await, [a1, a2]);
        expire_leases(&store).await;
        finalize_heads(&store, Verdict::Backoff { delay: Duration::from_hours(1), error: "trouble".into() }).await;
        assert_eq!(claimed(&store, &runs(2)).await, [0; 0], "a2 waits behind a1");
        execute(&store, "UPDATE outbox SET available_at = now() WHERE id = 1").await;
        finalize_heads(&store, Verdict::Done { broker_message_id: None, broker_sequence: None }).await;
        assert_eq!(claimed(&store, &runs(2)).await, [a2]);
    }
}

/// A claim waits for no lock, here on a lease that ran out.
#[tokio::test]
async fn a_lease_that_ran_out_and_is_locked_by_somebody_else_is_passed_over() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, b1] = seed(&store, &[("a", "e"), ("b", "e")]).await[..] else { panic!() };
    assert_eq!(claimed(&store, &runs(1)).await, [a1, b1]);
    expire_leases(&store).await;
    let mut person = store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM outbox WHERE id = 1 FOR UPDATE").execute(&mut *person).await.unwrap();
    let request = runs(1);
    let claim = tokio::time::timeout(std::time::Duration::from_secs(20), claimed(&store, &request));
    assert_eq!(claim.await.expect("it waits for nobody"), [b1]);
    person.rollback().await.unwrap();
}

/// Claims see the table as it was when they began: each row is looked at again when it is locked.
#[tokio::test]
async fn a_claim_that_was_held_up_after_its_snapshot_takes_only_what_is_still_due_and_in_order() {
    let database = Database::new().await;
    let store = database.store().await;
    let messages = ["a", "a", "a", "b", "b", "c", "c"].map(|aggregate| (aggregate, "e"));
    let [a1, _a2, _a3, _b1, b2, c1, _c2] = seed(&store, &messages).await[..] else { panic!() };
    // the very statement, with a gate behind its snapshot and ahead of its locks
    let held_up = include_str!("../src/store/sql/claim.sql")
        .replacen("WITH backlog", "WITH gate AS MATERIALIZED (SELECT pg_advisory_xact_lock(7)), backlog", 1)
        .replacen("WHERE o.status = 'pending'", "WHERE (SELECT count(*) FROM gate) = 1 AND o.status = 'pending'", 1);
    let mut doorkeeper = sqlx::PgConnection::connect(database.url()).await.unwrap();
    sqlx::query("SELECT pg_advisory_lock(7)").execute(&mut doorkeeper).await.unwrap();
    let pool = store.pool().clone();
    let claim = tokio::spawn(async move {
        let claim = sqlx::query(sqlx::AssertSqlSafe(held_up))
            .bind("w")
            .bind(60.0)
            .bind(12)
            .bind(100_i64)
            .bind(10_i64)
            .bind(1_i64 << 30)
            .bind(1_000_i64)
            .bind(chrono::DateTime::UNIX_EPOCH)
            .bind(0_i64)
            .bind(true)
            .bind(100_i64)
            .bind(0_i64)
            .bind(None::<chrono::DateTime<chrono::Utc>>)
            .bind(None::<i64>)
            .bind(1_000_i64)
            .bind(0_i64)
            .bind(Vec::<String>::new());
        claim.fetch_all(&pool).await.unwrap().iter().map(|row| row.get::<MessageId, _>("id?")).collect::<Vec<_>>()
    });
    support::eventually("the claim waits at the gate", || async {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database \
             WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()",
        )
        .fetch_one(store.pool())
        .await
        .unwrap();
        waiting == 1
    })
    .await;
    execute(&store, "UPDATE outbox SET available_at = now() + interval '1 hour' WHERE id = 2").await;
    execute(&store, "UPDATE outbox SET status = 'done', done_at = now() WHERE id = 4").await;
    execute(&store, "UPDATE outbox SET attempts = 1 WHERE id = 6").await;
    doorkeeper.close().await.unwrap();
    assert_eq!(claim.await.unwrap(), [a1, c1], "a2 is put off, b1 is done, c1 has failed and runs alone");
    assert_eq!(claimed(&store, &runs(10)).await, [b2]);
}

/// The lock on a follower ends the run there: a3 must not be claimed past a2.
#[tokio::test]
async fn a_row_that_somebody_else_has_locked_ends_the_run() {
    let database = Database::new().await;
    let store = database.store().await;
    let [a1, _a2, _a3, b1, b2] = seed(&store, &[("a", "e"), ("a", "e"), ("a", "e"), ("b", "e"), ("b", "e")]).await[..]
    else {
        panic!()
    };
    let mut other = sqlx::PgConnection::connect(database.url()).await.unwrap();
    let mut tx = other.begin().await.unwrap();
    sqlx::query("SELECT FROM outbox WHERE id = 2 FOR UPDATE").execute(&mut *tx).await.unwrap();
    assert_eq!(claimed(&store, &runs(10)).await, [a1, b1, b2]);
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn a_head_that_somebody_else_has_locked_is_passed_over_with_its_whole_aggregate() {
    let database = Database::new().await;
    let store = database.store().await;
    let [_a1, _a2, b1] = seed(&store, &[("a", "e"), ("a", "e"), ("b", "e")]).await[..] else { panic!() };
    let mut tx = store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM outbox WHERE id = 1 FOR UPDATE").execute(&mut *tx).await.unwrap();
    assert_eq!(claimed(&store, &runs(10)).await, [b1]);
    tx.rollback().await.unwrap();
}

// C01, the raw INSERT: ids are drawn before commit, so a later id can be there first. Nothing is lost or stuck.
#[tokio::test]
async fn a_row_that_commits_late_with_a_lower_id_is_claimed_then_and_other_aggregates_never_wait() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut late = store.pool().begin().await.unwrap();
    sqlx::query(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'e', '1')",
    )
    .execute(&mut *late)
    .await
    .unwrap();
    let [a2, b1] = seed(&store, &[("a", "e"), ("b", "e")]).await[..] else { panic!() };
    assert_eq!(claimed(&store, &runs(10)).await, [a2, b1]);
    late.commit().await.unwrap();
    assert_eq!(claimed(&store, &runs(10)).await, [1], "the head check looks back, never forward");
}

// C02
#[tokio::test]
async fn eight_claimers_with_stale_statistics_and_nested_loops_never_take_more_than_they_asked_for() {
    let database = Database::new().await;
    let store = database.store().await;
    execute(&store, "ANALYZE outbox").await;
    execute(
        &store,
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
         SELECT 'order', 'order-' || n % 400, 'e', '{}' FROM generate_series(1, 2000) AS n",
    )
    .await;
    execute(&store, "ALTER TABLE outbox SET (autovacuum_enabled = false)").await;
    let claimers = (0..8).map(|n| {
        let url = database.url().to_owned();
        async move {
            let pool = sqlx::postgres::PgPoolOptions::new()
                .max_connections(1)
                .after_connect(|connection, _| {
                    Box::pin(async move {
                        sqlx::raw_sql(
                            "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off",
                        )
                        .execute(connection)
                        .await
                        .map(|_| ())
                    })
                })
                .connect(&url)
                .await
                .unwrap();
            let store = Store::new(pool);
            let request = ClaimRequest { run_length: 3, ..request(&format!("w{n}"), 10) };
            let mut mine = Vec::new();
            for _ in 0..20 {
                let batch = claimed(&store, &request).await;
                assert!(batch.len() <= 10, "{batch:?}");
                mine.extend(batch);
            }
            mine
        }
    });
    let mut all = join_all(claimers).await.concat();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "no row was claimed twice");
}

/// A plan made for an empty table compares every row with every row, and would be kept for as long as the connection.
#[tokio::test]
async fn claims_of_an_empty_table_leave_no_plan_behind_that_later_ones_would_use() {
    let database = Database::new().await;
    let store = Store::connect(database.url(), 1).await.unwrap();
    execute(&store, "ANALYZE outbox").await;
    for _ in 0..20 {
        assert_eq!(claimed(&store, &runs(10)).await, [0; 0]);
    }
    let plans: (i64, i64) = sqlx::query_as(
        "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '-- Called by Store::claim%'",
    )
    .fetch_one(store.pool())
    .await
    .unwrap();
    assert_eq!(plans, (20, 0));
}

// C06
#[tokio::test]
async fn a_run_is_in_id_order_even_where_the_heap_is_not() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded = seed(&store, &[("a", "e"); 10]).await;
    for rewrite in [
        "CREATE INDEX backwards ON outbox ((-id))",
        "CLUSTER outbox USING backwards",
        "UPDATE outbox SET available_at = now() - id * interval '1 minute'",
    ] {
        execute(&store, rewrite).await;
    }
    assert_eq!(claimed(&store, &runs(10)).await, seeded);
}

#[tokio::test]
async fn a_claim_counts_the_attempt_and_names_its_owner_and_lease_in_database_time() {
    let database = Database::new().await;
    let store = database.store().await;
    let id = seed(&store, &[("a", "e")]).await[0];
    store.claim(&request("worker-7", 1)).await.unwrap();
    let row = store.show(id).await.unwrap().unwrap();
    assert_eq!((row.attempts, row.lease_version, row.lease_owner.as_deref()), (1, 1, Some("worker-7")));
    let lease: f64 = sqlx::query_scalar("SELECT extract(epoch FROM lease_until - now())::float8 FROM outbox")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert!((support::LEASE.as_secs_f64() - 10.0..=support::LEASE.as_secs_f64()).contains(&lease), "{lease}");
}

// C26
#[tokio::test]
async fn a_row_whose_attempts_are_at_the_columns_maximum_is_claimed_with_the_others_and_stays_there() {
    let database = Database::new().await;
    let store = database.store().await;
    let seeded = seed(&store, &[("a", "e"), ("b", "e")]).await;
    execute(&store, "UPDATE outbox SET attempts = 2147483647 WHERE id = 1").await;
    let claimed = store.claim(&runs(10)).await.unwrap().messages;
    assert_eq!(ids(&claimed), seeded);
    assert_eq!(claimed[0].attempts, i32::MAX);
}

#[tokio::test]
async fn a_claimed_message_carries_its_payload_digit_by_digit() {
    let database = Database::new().await;
    let store = database.store().await;
    // C33
    execute(
        &store,
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('order', 'a', 'e', \
         '{\"n\":   9007199254740993, \"d\": 0.123456789012345678901234567890, \"h\": 12e5}', '{\"trace\": \"x\"}')",
    )
    .await;
    let message = store.claim(&runs(1)).await.unwrap().messages.remove(0);
    assert_eq!(message.payload, r#"{"d": 0.123456789012345678901234567890, "h": 1200000, "n": 9007199254740993}"#);
    assert_eq!(message.headers().unwrap(), [("trace".to_owned(), "x".to_owned())]);
}

#[tokio::test]
async fn the_table_refuses_a_state_that_the_machine_does_not_have() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("a", "e")]).await;
    for (constraint, sql) in [
        ("outbox_status_known", "UPDATE outbox SET status = 'failed'"),
        ("outbox_lease_while_processing", "UPDATE outbox SET status = 'processing'"),
        ("outbox_lease_while_processing", "UPDATE outbox SET lease_until = now(), lease_owner = 'x'"),
        ("outbox_done_at_when_done", "UPDATE outbox SET status = 'done'"),
        ("outbox_done_at_when_done", "UPDATE outbox SET done_at = now()"),
        ("outbox_skipped_is_done", "UPDATE outbox SET skip_reason = 'x'"),
        ("outbox_attempts_not_negative", "UPDATE outbox SET attempts = -1"),
        ("outbox_size_bounded", "UPDATE outbox SET payload = jsonb_build_array(repeat('x', 4200000))"),
        // a few bytes in the table, 5 MB as text
        (
            "outbox_size_bounded",
            "UPDATE outbox SET headers = (SELECT jsonb_object_agg(n, '1e131071'::jsonb) FROM generate_series(1, 40) AS n)",
        ),
        ("outbox_times_in_calendar", "UPDATE outbox SET created_at = '-infinity'"),
        ("outbox_times_in_calendar", "UPDATE outbox SET available_at = 'infinity'"),
        ("outbox_times_in_calendar", "UPDATE outbox SET available_at = '200000-01-01'"),
        ("outbox_headers_object", "UPDATE outbox SET headers = '[]'"),
        ("outbox_aggregate_id_not_empty", "UPDATE outbox SET aggregate_id = ''"),
        ("outbox_aggregate_type_not_empty", "UPDATE outbox SET aggregate_type = ''"),
        ("outbox_event_type_not_empty", "UPDATE outbox SET event_type = ''"),
    ] {
        let error = sqlx::query(sql).execute(store.pool()).await.unwrap_err();
        assert_eq!(error.as_database_error().and_then(|error| error.constraint()), Some(constraint), "{sql}");
    }
    assert_eq!(rows(&store).await, [(1, "pending".to_owned(), 0)]);
}

/// P8: a destination that is down costs the others a look at its rows, and no more.
#[tokio::test]
async fn no_head_of_an_excepted_aggregate_type_is_claimed_and_what_stands_behind_one_waits_for_it() {
    for (postgres, _) in Postgres::all() {
        let database = Database::on(postgres).await;
        let store = database.store().await;
        seed(&store, &[("a", "e"), ("b", "e"), ("a", "e"), ("c", "e"), ("c", "e")]).await;
        execute(&store, "UPDATE outbox SET aggregate_type = 'payment' WHERE id IN (1, 5)").await;
        let except =
            |types: &[&str]| ClaimRequest { except: types.iter().map(|kind| (*kind).to_owned()).collect(), ..runs(10) };
        let claim = store.claim(&except(&["payment"])).await.unwrap();
        // a's head is a payment; the run of c goes on into one, which the publisher hands back
        assert_eq!(ids(&claim.messages), [2, 4, 5]);
        assert_eq!((claim.window.waiting, claim.window.excepted, claim.window.ended), (2, 1, true));
        expire_leases(&store).await;
        assert_eq!(claimed(&store, &except(&["order", "payment"])).await, [0_i64; 0]);
        assert_eq!(claimed(&store, &except(&["payment", "unheard of"])).await, [2, 4]);
        assert_eq!(claimed(&store, &except(&["order"])).await, [1, 3]);
    }
}

/// P9: what was sent once may be there twice when it is sent again too late; what was not sent, not.
#[tokio::test]
async fn a_claim_tells_how_long_ago_the_message_was_first_tried_unless_it_was_handed_back_untried() {
    for (postgres, _) in Postgres::all() {
        let database = Database::on(postgres).await;
        let store = database.store().await;
        seed(&store, &[("a", "e")]).await;
        let claim = async || store.claim(&request("w", 10)).await.unwrap().messages.pop().unwrap();
        for _ in 0..2 {
            let first = claim().await;
            assert_eq!(first.first_tried, None);
            store.release(&[Release::new(&first)]).await.unwrap();
        }
        let first = claim().await;
        let outage = Verdict::Defer { delay: Duration::ZERO, error: "down".into() };
        store.finalize(&[Finalize::new(&first, outage)]).await.unwrap();
        execute(&store, "UPDATE outbox SET first_tried_at = first_tried_at - interval '6 minutes'").await;
        let minutes = |message: &Message| message.first_tried.unwrap().as_secs() / 60;
        let second = claim().await;
        assert_eq!(minutes(&second), 6);
        store.release(&[Release::new(&second)]).await.unwrap();
        let third = claim().await;
        assert_eq!(minutes(&third), 6, "a hand-back forgets no earlier try");
        expire_leases(&store).await;
        assert_eq!(minutes(&claim().await), 6, "nor does a takeover");
    }
}
