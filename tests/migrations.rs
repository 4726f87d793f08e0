//! The schema, from nothing, on the oldest and the newest PostgreSQL; and the committed query data against it.

mod support;

use std::collections::BTreeSet;

use ordered_outbox::migrate::{self, MigrateError, Migrated, SchemaError};
use ordered_outbox::outcome::Verdict;
use ordered_outbox::store::{Finalize, Finalized};
use sqlx::{Column as _, Executor as _, Row as _, SqlSafeStr as _, TypeInfo as _};
use support::{Database, Postgres, execute, ids, request, seed};

#[tokio::test]
async fn an_empty_database_is_migrated_on_postgresql_15_and_18_and_a_second_time_changes_nothing() {
    for (postgres, major) in Postgres::all() {
        let database = Database::unmigrated(postgres).await;
        let store = database.store().await;
        let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::int / 10000")
            .fetch_one(store.pool())
            .await
            .unwrap();
        assert_eq!(version, major);
        assert!(matches!(store.check_schema().await, Err(SchemaError::Unmigrated)));
        let known = migrate::known_version();
        assert_eq!(store.migrate().await.unwrap(), Migrated { from: 0, to: known });
        assert_eq!(store.migrate().await.unwrap(), Migrated { from: known, to: known });
        store.check_schema().await.unwrap();

        // and it works there: the whole path of a row
        let seeded = seed(&store, &[("a", "e"), ("a", "e"), ("b", "e")]).await;
        let claimed = store.claim(&request("w", 10)).await.unwrap().messages;
        assert_eq!(ids(&claimed), [seeded[0], seeded[2]]);
        let done = Verdict::Done { broker_message_id: None, broker_sequence: None };
        let dead = Verdict::Dead { error: "broken".into() };
        let verdicts = [Finalize::new(&claimed[0], done), Finalize::new(&claimed[1], dead)];
        assert_eq!(store.finalize(&verdicts).await.unwrap(), [Finalized::Finalized, Finalized::Finalized]);
        assert_eq!(store.gates(0, 10).await.unwrap().len(), 1);
        store.skip(seeded[2], "why").await.unwrap();
        assert_eq!(store.stats().await.unwrap().gated_aggregates, 0);
        assert_eq!(store.reap(12, 10).await.unwrap(), [0; 0]);
        assert_eq!(store.source().await.unwrap().len(), 12);
        assert_eq!(store.purge(std::time::Duration::ZERO, 10).await.unwrap(), 2);
    }
}

#[tokio::test]
async fn a_schema_from_a_newer_release_is_refused_and_left_alone() {
    let database = Database::new().await;
    let store = database.store().await;
    let known = migrate::known_version();
    execute(
        &store,
        "INSERT INTO outbox_migrations (version, description, success, checksum, execution_time) \
         VALUES (9999, 'from the future', true, '\\x00', 0)",
    )
    .await;
    assert!(matches!(store.check_schema().await, Err(SchemaError::Newer { found: 9999, known: k }) if k == known));
    assert!(matches!(store.migrate().await, Err(MigrateError::Newer { found: 9999, .. })));
}

#[tokio::test]
async fn an_application_that_keeps_its_own_sqlx_migrations_in_the_database_is_not_disturbed() {
    let database = Database::unmigrated(Postgres::Latest).await;
    let store = database.store().await;
    execute(&store, "CREATE TABLE _sqlx_migrations (version bigint PRIMARY KEY, theirs text)").await;
    execute(&store, "INSERT INTO _sqlx_migrations VALUES (20260101, 'orders')").await;
    store.migrate().await.unwrap();
    let theirs: Vec<(i64, String)> =
        sqlx::query_as("SELECT version, theirs FROM _sqlx_migrations").fetch_all(store.pool()).await.unwrap();
    assert_eq!(theirs, [(20_260_101, "orders".to_owned())]);
}

#[tokio::test]
async fn every_column_of_the_outbox_is_explained_in_the_database() {
    let database = Database::new().await;
    let store = database.store().await;
    let unexplained: Vec<String> = sqlx::query_scalar(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attnum > 0 \
         AND NOT attisdropped AND col_description(attrelid, attnum) IS NULL",
    )
    .fetch_all(store.pool())
    .await
    .unwrap();
    assert_eq!(unexplained, [""; 0]);
}

/// The build checks queries against the committed `.sqlx/`; this checks `.sqlx/` against the migrations.
#[tokio::test]
async fn the_committed_query_data_matches_the_migrated_schema() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut checked = BTreeSet::new();
    for entry in std::fs::read_dir(".sqlx").unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let data: serde_json::Value = serde_json::from_str(&text).unwrap();
        let query = data["query"].as_str().unwrap().to_owned();
        let described = store.pool().describe(sqlx::AssertSqlSafe(query.clone()).into_sql_str()).await.unwrap();
        let committed: Vec<_> = data["describe"]["columns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| {
                let type_info = column["type_info"].as_str().unwrap().to_uppercase();
                (column["name"].as_str().unwrap().to_owned(), type_info.replace("ARRAY", "[]"))
            })
            .collect();
        let live: Vec<_> = described
            .columns()
            .iter()
            .map(|column| (column.name().to_owned(), column.type_info().name().to_uppercase()))
            .collect();
        assert_eq!(committed, live, "{query}: run `make prepare`");
        checked.insert(query);
    }
    for entry in std::fs::read_dir("src/store/sql").unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(checked.contains(&text), "{} is not in .sqlx: run `make prepare`", path.display());
        let head: Vec<_> = text.lines().take(3).collect();
        assert!(head[0].starts_with("-- Called by "), "{}: who calls it", path.display());
        assert!(head[1].starts_with("-- Locks "), "{}: what it locks", path.display());
        assert!(head[2].starts_with("-- "), "{}: what zero rows mean", path.display());
    }
    let count: i64 = sqlx::query("SELECT count(*) FROM outbox").fetch_one(store.pool()).await.unwrap().get(0);
    assert_eq!(count, 0, "describing runs nothing");
}
