//! The floor: the two writes of each row, by primary key, in batches, on one connection. Nothing is looked for, no
//! order kept, no lease checked.

use std::time::Instant;

use super::contestant::{Measured, measured};
use super::support::BATCH;
use super::support::database::Database;

const CLAIM: &str = "UPDATE outbox SET status = 'processing', lease_owner = 'floor', \
     lease_until = now() + interval '1 minute', lease_version = lease_version + 1, attempts = attempts + 1 \
     WHERE id = ANY ($1) \
     RETURNING id, lease_version, attempts, aggregate_type, aggregate_id, event_type, payload::text, headers::text, \
     extract(epoch FROM now() - created_at)::double precision";

const FINALIZE: &str = "UPDATE outbox SET status = 'done', done_at = now(), lease_owner = NULL, lease_until = NULL, \
     broker_message_id = '7f9c24e8-3b12-4d6a-9c1e-5a0b7d3f8e21', broker_sequence = '18849496460467696128' \
     WHERE id = ANY ($1)";

/// On a copy of the table, with the pinned settings of a dispatcher's connection.
pub(crate) async fn measure(template: &Database, deliverable: u64) -> Measured {
    let database = template.copy().await;
    let ids = deliverable_ids(&database).await;
    assert_eq!(ids.len() as u64, deliverable);
    measured(&database, async {
        let store = database.store(1).await;
        let mut connection = store.pool().acquire().await.unwrap();
        let start = Instant::now();
        for ids in ids.chunks(BATCH as usize) {
            let claimed = sqlx::query(CLAIM).bind(ids).fetch_all(&mut *connection).await.unwrap();
            assert_eq!(claimed.len(), ids.len());
            sqlx::query(FINALIZE).bind(ids).execute(&mut *connection).await.unwrap();
        }
        let took = start.elapsed();
        drop(connection);
        store.pool().close().await;
        (deliverable, took)
    })
    .await
}

/// In id order: what is claimed next lies side by side in the table.
async fn deliverable_ids(database: &Database) -> Vec<i64> {
    let pool = database.plain_pool(1).await;
    let ids = sqlx::query_scalar(
        "SELECT id FROM outbox AS o WHERE status = 'pending' AND NOT EXISTS \
         (SELECT FROM outbox AS d WHERE d.aggregate_id = o.aggregate_id AND d.status = 'dead') ORDER BY id",
    );
    let ids = ids.fetch_all(&pool).await.unwrap();
    pool.close().await;
    ids
}
