//! P8: what each statement reads, on large tables of several shapes, with good statistics, stale ones and none.

mod support;

use std::collections::BTreeSet;

use ordered_outbox::Store;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use support::{Database, Postgres};

/// Rows of each table.
const ROWS: u64 = 100_000;

/// A table of `ROWS` rows; `n` counts them.
struct Shape {
    name: &'static str,
    aggregate_id: &'static str,
    status: &'static str,
    parked: &'static str,
}

const UNIFORM: Shape =
    Shape { name: "100,000 x 1", aggregate_id: "'order-' || n", status: "'pending'", parked: "false" };
const HOT: Shape = Shape {
    name: "1 x 99,000 and 1,000 x 1",
    aggregate_id: "CASE WHEN n % 100 = 0 THEN 'order-' || n ELSE 'hot' END",
    status: "'pending'",
    parked: "false",
};
const TWENTY: Shape = Shape {
    name: "20 x 5,000, half of it parked",
    aggregate_id: "'order-' || n % 20",
    status: "'pending'",
    parked: "n > 50000",
};
const GATED: Shape = Shape {
    name: "1,000 gated x 100, half of it parked",
    aggregate_id: "'order-' || n % 1000",
    status: "CASE WHEN n <= 1000 THEN 'dead' ELSE 'pending' END",
    parked: "n > 50000",
};

/// What a statement may read.
struct Guard {
    name: &'static str,
    sql: &'static str,
    arguments: &'static str,
    /// What has to be there, in the same transaction.
    given: &'static str,
    /// The index that leads to its rows, and the others it may use.
    leads: &'static str,
    others: &'static [&'static str],
    /// Most rows that all scans together step over, and most shared buffers; see `docs/testing.md`.
    rows: u64,
    buffers: u64,
}

/// The 500 oldest pending rows are leased.
const LEASED: &str = "UPDATE outbox SET status = 'processing', parked = false, lease_owner = 'w', attempts = 12, \
    lease_until = now() - interval '1 minute' WHERE id = ANY (ARRAY(SELECT id FROM outbox WHERE status = 'pending' \
    ORDER BY available_at, id LIMIT 500))";

const FINISHED: &str = "UPDATE outbox SET status = 'done', parked = false, done_at = now() - interval '1 day' \
    WHERE id > 99000";

const LEASES: &str = "ARRAY(SELECT id FROM outbox WHERE status = 'processing' ORDER BY id), \
    ARRAY(SELECT lease_version FROM outbox WHERE status = 'processing' ORDER BY id)";

const GUARDS: [Guard; 11] = [
    Guard {
        name: "claim",
        sql: include_str!("../src/store/sql/claim.sql"),
        arguments: "'w', 60, 12, 100, 10, 16777216, 1000, '0001-01-01', 0, true, 100, 0, NULL, NULL, 1000, 0, '{}'",
        given: "",
        leads: "outbox_ready",
        others: &["outbox_unfinished", "outbox_pkey", "outbox_leased"],
        rows: 2_500,
        buffers: 6_600,
    },
    Guard {
        name: "claim_further_on",
        sql: include_str!("../src/store/sql/claim.sql"),
        arguments: "'w', 60, 12, 100, 10, 16777216, 1000, now() - interval '59 minutes 35 seconds', 0, false, 100, 0, \
            now() - interval '59 minutes 35 seconds', 0, 1000, 0, '{}'",
        given: "",
        leads: "outbox_ready",
        others: &["outbox_unfinished", "outbox_pkey", "outbox_leased"],
        rows: 2_500,
        buffers: 6_600,
    },
    Guard {
        name: "claim_of_a_backlog",
        sql: include_str!("../src/store/sql/claim.sql"),
        arguments: "'w', 60, 12, 100, 10, 16777216, 1000, '0001-01-01', 0, false, 100, 1000, \
            now() - interval '59 minutes 40 seconds', 0, 1000, 1000, '{}'",
        given: "",
        leads: "outbox_ready",
        others: &["outbox_unfinished", "outbox_pkey", "outbox_leased"],
        rows: 5_000,
        buffers: 9_000,
    },
    Guard {
        name: "finalize",
        sql: include_str!("../src/store/sql/finalize.sql"),
        arguments: "LEASES, array_fill('done'::text, ARRAY[500]), array_fill(0::float8, ARRAY[500]), \
            array_fill(NULL::text, ARRAY[500]), array_fill('m'::text, ARRAY[500]), array_fill('1'::text, ARRAY[500]), \
            array_fill(true, ARRAY[500]), array_fill(false, ARRAY[500])",
        given: LEASED,
        leads: "outbox_pkey",
        others: &["outbox_unfinished"],
        rows: 4_000,
        buffers: 36_000,
    },
    Guard {
        name: "busy",
        sql: include_str!("../src/store/sql/busy.sql"),
        arguments: "LEASES",
        given: LEASED,
        leads: "outbox_pkey",
        others: &[],
        rows: 600,
        buffers: 4_500,
    },
    Guard {
        name: "release",
        sql: include_str!("../src/store/sql/release.sql"),
        arguments: "LEASES, array_fill(true, ARRAY[500])",
        given: LEASED,
        leads: "outbox_pkey",
        others: &[],
        rows: 1_200,
        buffers: 30_000,
    },
    Guard {
        name: "park",
        sql: include_str!("../src/store/sql/park.sql"),
        arguments: "'0001-01-01', 0, 500, 0",
        given: "",
        leads: "outbox_ready",
        others: &["outbox_unfinished", "outbox_pkey"],
        rows: 6_000,
        buffers: 34_000,
    },
    Guard {
        name: "sweep",
        sql: include_str!("../src/store/sql/sweep.sql"),
        arguments: "'', 500",
        given: "",
        leads: "outbox_parked",
        others: &["outbox_unfinished", "outbox_pkey"],
        rows: 1_200,
        buffers: 5_700,
    },
    Guard {
        name: "reap",
        sql: include_str!("../src/store/sql/reap.sql"),
        arguments: "12, 100",
        given: LEASED,
        leads: "outbox_leased",
        others: &["outbox_pkey"],
        rows: 3_000,
        buffers: 5_500,
    },
    Guard {
        name: "purge",
        sql: include_str!("../src/store/sql/purge.sql"),
        arguments: "60, 500",
        given: FINISHED,
        leads: "outbox_done",
        others: &["outbox_pkey"],
        rows: 3_000,
        buffers: 10_000,
    },
    Guard {
        name: "unpark_next",
        sql: include_str!("../src/store/sql/unpark_next.sql"),
        arguments: "1",
        given: "",
        leads: "outbox_unfinished",
        others: &["outbox_pkey"],
        rows: 10,
        buffers: 900,
    },
];

/// Every node of a plan.
fn nodes(plan: &Value) -> Vec<&Value> {
    let below = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(below).collect()
}

/// Rows a node handed on or threw away, over all its loops.
fn stepped_over(node: &Value) -> u64 {
    let of = |name: &str| node[name].as_f64().unwrap_or(0.0);
    let a_loop = of("Actual Rows") + of("Rows Removed by Filter") + of("Rows Removed by Index Recheck");
    (a_loop * of("Actual Loops")).ceil() as u64
}

impl Guard {
    async fn prepare(&self, connection: &mut PgConnection) {
        let prepare = format!("PREPARE {} AS {}", self.name, self.sql);
        connection.execute(sqlx::raw_sql(AssertSqlSafe(prepare))).await.unwrap();
    }

    /// Runs it, explained, and takes everything back.
    async fn hold(&self, connection: &mut PgConnection, case: &str, more_rows: u64) {
        let mut tx = connection.begin().await.unwrap();
        if !self.given.is_empty() {
            tx.execute(self.given).await.unwrap();
        }
        // arguments of EXECUTE may not be subqueries
        let mut arguments = self.arguments.to_owned();
        if arguments.contains("LEASES") {
            let [ids, versions]: [String; 2] = sqlx::query_as::<_, (String, String)>(AssertSqlSafe(format!(
                "SELECT a::text, b::text FROM (SELECT {LEASES}) AS leases (a, b)"
            )))
            .fetch_one(&mut *tx)
            .await
            .map(|(ids, versions)| [ids, versions])
            .unwrap();
            arguments = arguments.replace("LEASES", &format!("'{ids}', '{versions}'"));
        }
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {} ({arguments})", self.name);
        let explained: Value = sqlx::query_scalar(AssertSqlSafe(explain)).fetch_one(&mut *tx).await.unwrap();
        tx.rollback().await.unwrap();
        let plan = &explained[0]["Plan"];
        let nodes = nodes(plan);
        let scans: Vec<_> = nodes.iter().filter(|node| node["Node Type"].as_str().unwrap().contains("Scan")).collect();
        let indexes: BTreeSet<_> = scans.iter().filter_map(|node| node["Index Name"].as_str()).collect();
        // of a bitmap the rows that it leads to: its entries include those that guards before this one left dead
        let is_read = |node: &Value| match node["Node Type"].as_str().unwrap() {
            "Bitmap Heap Scan" => true,
            "Bitmap Index Scan" => false,
            _ => !node["Index Name"].is_null(),
        };
        let rows: u64 = scans.iter().filter(|node| is_read(node)).map(|node| stepped_over(node)).sum();
        let sorted = nodes.iter().filter(|node| node["Node Type"] == "Sort").map(|node| stepped_over(node)).max();
        let buffers =
            ["Shared Hit Blocks", "Shared Read Blocks"].iter().filter_map(|name| plan[name].as_u64()).sum::<u64>();
        let seen = format!("{} of {case}: {rows} rows, {buffers} buffers, {sorted:?} sorted, {indexes:?}", self.name);
        println!("{seen}");
        let fails = |what: &str| panic!("{what}: {seen}\n{plan:#}");
        if scans.iter().any(|node| node["Node Type"] == "Seq Scan" && node["Relation Name"] == "outbox") {
            fails("reads the whole table");
        }
        if !indexes.contains(self.leads)
            || indexes.iter().any(|index| *index != self.leads && !self.others.contains(index))
        {
            fails("reads by another index");
        }
        if sorted.is_some_and(|sorted| sorted > 2_000) {
            fails("sorts more than its window");
        }
        if rows > self.rows + more_rows || buffers > self.buffers {
            fails("reads too much");
        }
    }
}

/// A connection as the store's.
async fn ours(database: &Database) -> PgConnection {
    let store = Store::connect(database.url(), 1).await.unwrap();
    store.pool().acquire().await.unwrap().detach()
}

/// A connection of an application's pool.
async fn with_settings(database: &Database, settings: &'static str) -> PgConnection {
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    connection.execute(sqlx::raw_sql(settings)).await.unwrap();
    connection
}

async fn hold(database: &Database, case: &str, has_statistics: bool) {
    let custom = "SET plan_cache_mode = force_custom_plan; SET enable_bitmapscan = off";
    let plain = "SET plan_cache_mode = force_custom_plan";
    // With bitmap scans and without statistics, a handful of due rows are expected, collected and sorted, all of them:
    // 50 ms a claim here, until the first ANALYZE.
    let due = if has_statistics { 0 } else { ROWS };
    for (session, mut connection, more_rows) in [
        ("store", ours(database).await, 0),
        ("custom plans", with_settings(database, custom).await, 0),
        ("custom plans and bitmap scans", with_settings(database, plain).await, due),
    ] {
        for guard in &GUARDS {
            guard.prepare(&mut connection).await;
            guard.hold(&mut connection, &format!("{case}, {session}"), more_rows).await;
        }
    }
}

async fn empty(postgres: Postgres) -> (Database, PgConnection) {
    let database = Database::on(postgres).await;
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    // statistics come when the test says so
    connection.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)").await.unwrap();
    (database, connection)
}

async fn load(connection: &mut PgConnection, shape: &Shape) {
    let sql = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, status, parked, available_at) \
         SELECT 'order', {}, 'e', '{{}}', {}, {}, now() - interval '1 hour' + n * interval '1 millisecond' \
         FROM generate_series(1, {ROWS}) AS n",
        shape.aggregate_id, shape.status, shape.parked
    );
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql))).await.unwrap();
}

/// Statistics of the empty table; a plan made and kept then; fresh statistics.
async fn hold_shape(shape: &Shape) {
    for (postgres, version) in Postgres::all() {
        let (database, mut connection) = empty(postgres).await;
        connection.execute("ANALYZE outbox").await.unwrap();
        let mut early = ours(&database).await;
        for guard in &GUARDS {
            guard.prepare(&mut early).await;
        }
        for _ in 0..20 {
            for guard in GUARDS.iter().filter(|guard| !guard.arguments.contains("LEASES")) {
                let execute = format!("EXECUTE {} ({})", guard.name, guard.arguments);
                early.execute(sqlx::raw_sql(AssertSqlSafe(execute))).await.unwrap();
            }
        }
        load(&mut connection, shape).await;
        let case = |statistics: &str| format!("{} on {version}, {statistics}", shape.name);
        for guard in &GUARDS {
            guard.hold(&mut early, &case("planned while it was empty"), 0).await;
        }
        hold(&database, &case("statistics of the empty table"), false).await;
        connection.execute("ANALYZE outbox").await.unwrap();
        hold(&database, &case("fresh statistics"), true).await;
    }
}

#[tokio::test]
async fn what_is_read_is_bounded_where_every_row_is_ready() {
    hold_shape(&UNIFORM).await;
}

#[tokio::test]
async fn what_is_read_is_bounded_where_nearly_all_rows_are_of_one_aggregate() {
    hold_shape(&HOT).await;
}

#[tokio::test]
async fn what_is_read_is_bounded_where_few_aggregates_are_deep() {
    hold_shape(&TWENTY).await;
}

#[tokio::test]
async fn what_is_read_is_bounded_where_all_aggregates_are_gated() {
    hold_shape(&GATED).await;
}

#[tokio::test]
async fn what_is_read_is_bounded_where_statistics_were_never_taken() {
    for (postgres, version) in Postgres::all() {
        let (database, mut connection) = empty(postgres).await;
        load(&mut connection, &HOT).await;
        hold(&database, &format!("{} on {version}, no statistics", HOT.name), false).await;
    }
}

/// A row that waits costs one step, whatever its aggregate has finished: an old snapshot anywhere keeps the index entries
/// of finished rows, and a probe that began at the oldest would step over all of them once for every waiting row.
#[tokio::test]
async fn a_claim_does_not_pay_for_what_a_busy_aggregate_has_finished_once_for_every_row_that_waits() {
    for (postgres, version) in Postgres::all() {
        let (database, mut connection) = empty(postgres).await;
        let mut old = PgConnection::connect(database.url()).await.unwrap();
        let insert = "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
            SELECT 'order', CASE WHEN n > 1800 THEN 'other' ELSE 'busy' END, 'e', '{}' FROM generate_series(1, 1801) AS n";
        connection.execute(insert).await.unwrap();
        let mut snapshot = old.begin().await.unwrap();
        snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        snapshot.execute("SELECT count(*) FROM outbox").await.unwrap();
        for step in [
            "UPDATE outbox SET status = 'processing', lease_owner = 'w', lease_until = now() + interval '1 hour' WHERE id <= 800",
            "UPDATE outbox SET status = 'done', done_at = now(), lease_owner = NULL, lease_until = NULL WHERE id <= 800",
            "ANALYZE outbox",
        ] {
            connection.execute(step).await.unwrap();
        }
        let mut ours = ours(&database).await;
        for guard in GUARDS.iter().filter(|guard| ["claim", "park"].contains(&guard.name)) {
            guard.prepare(&mut ours).await;
            guard.hold(&mut ours, &format!("a busy aggregate under an old snapshot on {version}"), 0).await;
        }
        snapshot.rollback().await.unwrap();
    }
}
