//! A claim of 100 rows, ours beside the article's SQL, on tables whose shape makes a claim cheap or dear.
//!
//! The numbers are ratios within one run on one machine. Between two claims everything claimed is handed back and the
//! table is vacuumed, untimed, so that both statements always see the same table.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ordered_outbox::Store;
use ordered_outbox::store::ClaimRequest;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::runtime::Runtime;

const BATCH: u32 = 100;

/// A table to claim from: its name, and the aggregate id of row `n` of `rows`.
struct Shape {
    name: &'static str,
    rows: u32,
    aggregate_id: &'static str,
}

const SHAPES: [Shape; 3] = [
    Shape { name: "10000 aggregates x 1", rows: 10_000, aggregate_id: "'order-' || n" },
    Shape {
        name: "1 aggregate x 1000 + 1000 x 2",
        rows: 3_000,
        aggregate_id: "CASE WHEN n <= 1000 THEN 'hot' ELSE 'order-' || n % 1000 END",
    },
    Shape { name: "20 aggregates x 500", rows: 10_000, aggregate_id: "'order-' || n % 20" },
];

/// A database of the benchmark's own, dropped at its end.
struct Bench {
    runtime: Runtime,
    admin_url: String,
    name: String,
    store: Store,
}

impl Bench {
    fn new(shape: &Shape) -> Self {
        let runtime = Runtime::new().unwrap();
        let admin_url = std::env::var("DATABASE_URL").expect("DATABASE_URL is not set: run `make bench`");
        let name = format!("outbox_bench_{}", std::process::id());
        let url = format!("{}/{name}", admin_url.rsplit_once('/').expect("the URL names a database").0);
        let store = runtime.block_on(async {
            let mut admin = PgConnection::connect(&admin_url).await.unwrap();
            run(&mut admin, format!("CREATE DATABASE {name}")).await;
            let store = Store::connect(&url, 2).await.unwrap();
            store.migrate().await.unwrap();
            let mut connection = store.pool().acquire().await.unwrap();
            run(&mut connection, "ALTER TABLE outbox SET (autovacuum_enabled = false)".into()).await;
            let insert = format!(
                "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) \
                 SELECT 'order', {}, 'OrderPlaced', '{{\"amount\": 1}}' FROM generate_series(1, {}) AS n",
                shape.aggregate_id, shape.rows
            );
            run(&mut connection, insert).await;
            drop(connection);
            store
        });
        Self { runtime, admin_url, name, store }
    }

    /// Hands everything back and cleans up, so that the next claim sees the table as it was.
    async fn reset(&self) {
        let mut connection = self.store.pool().acquire().await.unwrap();
        let back = "UPDATE outbox SET status = 'pending', attempts = 0, lease_owner = NULL, lease_until = NULL \
                    WHERE status = 'processing'";
        run(&mut connection, back.into()).await;
        run(&mut connection, "VACUUM (ANALYZE) outbox".into()).await;
    }

    async fn ours(&self, run_length: u32) -> Duration {
        let request = ClaimRequest {
            owner: "bench".into(),
            lease: Duration::from_mins(1),
            max_attempts: 12,
            batch_size: BATCH,
            batch_bytes: 1 << 30,
            window: BATCH,
            from: None,
            run_length,
        };
        let start = Instant::now();
        let claimed = self.store.claim(&request).await.unwrap().messages;
        let elapsed = start.elapsed();
        assert!(!claimed.is_empty());
        elapsed
    }

    async fn article(&self) -> Duration {
        let start = Instant::now();
        let claimed: Vec<i64> = sqlx::query_scalar(include_str!("article_claim.sql"))
            .bind("bench")
            .bind(60.0)
            .bind(12)
            .bind(i64::from(BATCH))
            .fetch_all(self.store.pool())
            .await
            .unwrap();
        let elapsed = start.elapsed();
        assert!(!claimed.is_empty());
        elapsed
    }

    fn time(&self, iterations: u64, claim: impl AsyncFn() -> Duration) -> Duration {
        self.runtime.block_on(async {
            let mut total = Duration::ZERO;
            for _ in 0..iterations {
                self.reset().await;
                total += claim().await;
            }
            total
        })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.runtime.block_on(async {
            self.store.pool().close().await;
            let mut admin = PgConnection::connect(&self.admin_url).await.unwrap();
            run(&mut admin, format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
        });
    }
}

async fn run(connection: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.unwrap();
}

fn claims(criterion: &mut Criterion) {
    for shape in &SHAPES {
        let bench = Bench::new(shape);
        let mut group = criterion.benchmark_group(format!("claim of {BATCH}: {}", shape.name));
        group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(3));
        group.bench_function("article, heads only", |b| b.iter_custom(|n| bench.time(n, || bench.article())));
        group.bench_function("run length 1", |b| b.iter_custom(|n| bench.time(n, || bench.ours(1))));
        group.bench_function("run length 10", |b| b.iter_custom(|n| bench.time(n, || bench.ours(10))));
        group.finish();
    }
}

criterion_group!(benches, claims);
criterion_main!(benches);
