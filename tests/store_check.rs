//! What is looked at in the database before a dispatcher starts. Every problem names its remedy, and a look that gives no
//! answer never passes.

mod support;

use ordered_outbox::{Check, State, Store};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use support::{Database, Postgres, execute};

/// State and name of every check.
fn states(checks: &[Check]) -> Vec<(State, &str)> {
    checks.iter().map(|check| (check.state, check.name)).collect()
}

/// What is not as it has to be.
async fn troubles(store: &Store) -> Vec<(State, &'static str, String)> {
    let checks = store.checks().await.into_iter().filter(|check| check.state != State::Ok);
    checks.map(|check| (check.state, check.name, check.finding)).collect()
}

async fn run(store: &Store, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(store.pool()).await.unwrap();
}

#[tokio::test]
async fn a_fresh_outbox_passes_every_check() {
    for (postgres, major) in Postgres::all() {
        let database = Database::on(postgres).await;
        let checks = database.store().await.checks().await;
        let names = [
            "connection",
            "database version",
            "writable",
            "isolation level",
            "planner settings",
            "pool size",
            "clock skew",
            "schema version",
            "privileges",
            "indexes",
        ];
        assert_eq!(states(&checks), names.map(|name| (State::Ok, name)), "{checks:?}");
        assert!(checks[1].finding.starts_with(&format!("PostgreSQL {major}.")), "{checks:?}");
        assert!(!checks[0].finding.contains(":outbox@"), "{checks:?}");
    }
}

#[tokio::test]
async fn a_missing_index_is_a_problem_and_its_remedy_mends_it() {
    for (postgres, _) in Postgres::all() {
        let database = Database::on(postgres).await;
        let store = database.store().await;
        let names = ["ready", "leased", "unfinished", "dead", "done", "parked"].map(|name| format!("outbox_{name}"));
        for name in &names {
            run(&store, &format!("DROP INDEX {name}")).await;
        }
        run(&store, "ALTER TABLE outbox DROP CONSTRAINT outbox_pkey").await;
        let found = troubles(&store).await;
        assert_eq!(found.len(), 7, "{found:?}");
        for (state, check, finding) in &found {
            assert_eq!((*state, *check), (State::Problem, "indexes"));
            let (fault, remedy) = finding.split_once(": ").unwrap();
            assert!(fault.starts_with("index outbox_") && fault.ends_with(" is missing"), "{finding}");
            run(&store, remedy).await;
        }
        assert_eq!(troubles(&store).await, []);
    }
}

#[tokio::test]
async fn an_index_that_is_not_valid_is_a_problem_and_its_remedy_mends_it() {
    for (postgres, _) in Postgres::all() {
        let database = Database::on(postgres).await;
        let store = database.store().await;
        // as an index is left behind whose CREATE INDEX CONCURRENTLY failed
        execute(&store, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox_ready'::regclass").await;
        let finding = "index outbox_ready is not valid: REINDEX INDEX CONCURRENTLY outbox_ready";
        assert_eq!(troubles(&store).await, [(State::Problem, "indexes", finding.to_owned())]);
        execute(&store, "REINDEX INDEX CONCURRENTLY outbox_ready").await;
        assert_eq!(troubles(&store).await, []);
    }
}

#[tokio::test]
async fn an_index_of_the_right_name_on_other_columns_is_a_problem_and_its_remedy_mends_it() {
    let database = Database::new().await;
    let store = database.store().await;
    execute(&store, "DROP INDEX outbox_unfinished").await;
    execute(&store, "CREATE INDEX outbox_unfinished ON outbox (aggregate_id)").await;
    let [(State::Problem, "indexes", finding)] = &troubles(&store).await[..] else { panic!("one problem") };
    let (fault, remedies) = finding.split_once(": ").unwrap();
    assert_eq!(fault, "index outbox_unfinished is on btree (aggregate_id)");
    for remedy in remedies.split(", then ") {
        run(&store, remedy).await;
    }
    assert_eq!(troubles(&store).await, []);
}

#[tokio::test]
async fn a_schema_of_another_version_is_a_problem_and_what_depends_on_it_is_unknown() {
    let database = Database::unmigrated(Postgres::Latest).await;
    let store = database.store().await;
    let later = |name| (State::Unknown, name, "see the schema version first, then check again".to_owned());
    let told = |finding: &str| {
        vec![(State::Problem, "schema version", finding.to_owned()), later("privileges"), later("indexes")]
    };
    assert_eq!(troubles(&store).await, told("the database has no outbox: run `outbox migrate` first"));
    store.migrate().await.unwrap();
    execute(&store, "DELETE FROM outbox_migrations WHERE version = 3").await;
    let older = "the database has schema version 2, this program needs 3: run `outbox migrate`";
    assert_eq!(troubles(&store).await, told(older));
    execute(&store, "INSERT INTO outbox_migrations VALUES (3, '', now(), true, '', 0), (4, '', now(), true, '', 0)")
        .await;
    let newer = "the database has schema version 4, this program knows up to 3: use the newer program";
    assert_eq!(troubles(&store).await, told(newer));
}

#[tokio::test]
async fn a_role_that_may_not_write_or_not_even_read_is_a_problem() {
    for (postgres, _) in Postgres::all() {
        let database = Database::on(postgres).await;
        let as_role = async |role: &str| {
            let url = format!("{}?options=-c%20role%3D{role}", database.url());
            troubles(&Store::connect(&url, 3).await.unwrap()).await
        };
        let reader = "role pg_read_all_data may not dispatch: GRANT SELECT, UPDATE ON outbox TO pg_read_all_data";
        assert_eq!(as_role("pg_read_all_data").await, [(State::Problem, "privileges", reader.to_owned())]);
        let stranger = "PostgreSQL refuses (permission denied for table outbox_migrations): correct that";
        assert_eq!(as_role("pg_monitor").await[0], (State::Problem, "schema version", stranger.to_owned()));
    }
}

#[tokio::test]
async fn a_server_that_only_reads_is_a_problem() {
    let database = Database::new().await;
    let url = format!("{}?options=-c%20default_transaction_read_only%3Don", database.url());
    let store = Store::connect(&url, 3).await.unwrap();
    let finding = "the server only reads, as a standby does: name the primary in the database URL";
    assert_eq!(troubles(&store).await, [(State::Problem, "writable", finding.to_owned())]);
}

#[tokio::test]
async fn connections_of_another_isolation_level_are_a_problem_and_other_plans_a_warning() {
    let database = Database::new().await;
    let url = format!("{}?options=-c%20default_transaction_isolation%3Dserializable", database.url());
    let pool = PgPoolOptions::new().max_connections(3).connect(&url).await.unwrap();
    let found = troubles(&Store::new(pool)).await;
    let [(State::Problem, "isolation level", isolation), (State::Warning, "planner settings", planner)] = &found[..]
    else {
        panic!("{found:?}")
    };
    assert!(isolation.starts_with("transactions are serializable"), "{isolation}");
    assert!(planner.contains("set plan_cache_mode = force_generic_plan and enable_seqscan = off"), "{planner}");
    // what `Store::connect` sets goes before
    assert_eq!(troubles(&Store::connect(&url, 3).await.unwrap()).await, []);
}

#[tokio::test]
async fn a_pool_that_is_too_small_is_a_problem_and_one_that_cannot_be_filled_a_warning() {
    let database = Database::new().await;
    let two = troubles(&Store::connect(database.url(), 2).await.unwrap()).await;
    let [(State::Problem, "pool size", finding)] = &two[..] else { panic!("{two:?}") };
    assert!(finding.starts_with("a pool of 2 connections is too small"), "{finding}");
    let limit = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 4', current_database()); END $$";
    let store = Store::connect(database.url(), 6).await.unwrap();
    execute(&store, limit).await;
    let found = troubles(&store).await;
    let [(State::Warning, "pool size", finding)] = &found[..] else { panic!("{found:?}") };
    let numbers: Vec<i64> = finding.split(' ').filter_map(|word| word.parse().ok()).take(2).collect();
    let [left, more] = numbers[..] else { panic!("{finding}") };
    // how many are open already is the pool's affair
    assert_eq!(more - left, 2, "{finding}");
    let words = "PostgreSQL lets this role open N more connections, and the pool may open N more: make the pool smaller, \
                 3 at least, or raise the limit of the server, the database or the role";
    assert_eq!(
        finding.replace(&left.to_string(), "N").replace(&more.to_string(), "N").replace("N at least", "3 at least"),
        words
    );
}

/// It takes the 15 seconds that a look may take.
#[tokio::test]
async fn a_schema_that_cannot_be_read_in_time_is_a_problem_and_what_depends_on_it_does_not_pass() {
    let database = Database::new().await;
    let store = database.store().await;
    let mut lock = store.pool().begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE outbox_migrations").execute(&mut *lock).await.unwrap();
    let found = troubles(&store).await;
    let late = "no answer of PostgreSQL within 15s: see what it is busy with, and check again".to_owned();
    assert_eq!(found[0], (State::Problem, "schema version", late));
    assert_eq!(found.iter().skip(1).map(|found| found.0).collect::<Vec<_>>(), [State::Unknown; 2]);
    lock.rollback().await.unwrap();
    assert_eq!(troubles(&store).await, []);
}
