//! The article's dispatcher: its claim, and one finalize a row.

use sqlx::PgPool;

use super::BATCH;

/// What the article's claim returns and its finalize needs.
pub type Claimed = (i64, i64, i32, String, String, String);

/// Its claim, ordered, with its defaults.
pub async fn claim(pool: &PgPool, owner: &str) -> Vec<Claimed> {
    let mut claimed: Vec<Claimed> = sqlx::query_as(include_str!("../article_claim.sql"))
        .bind(owner)
        .bind(60.0)
        .bind(12)
        .bind(i64::from(BATCH))
        .fetch_all(pool)
        .await
        .unwrap();
    claimed.sort_unstable_by_key(|row| row.0);
    claimed
}

/// Its finalize: one row, one transaction, fenced.
pub async fn mark_done(pool: &PgPool, id: i64, lease_version: i64) -> bool {
    let done = sqlx::query(
        "UPDATE outbox SET status = 'done', done_at = now(), last_error = NULL, lease_owner = NULL, lease_until = NULL \
         WHERE id = $1 AND status = 'processing' AND lease_version = $2",
    );
    done.bind(id).bind(lease_version).execute(pool).await.unwrap().rows_affected() == 1
}

/// All rows of a claim at once, which is kinder than its own finalize: for what is not timed.
pub async fn mark_all_done(pool: &PgPool, claimed: &[Claimed]) {
    let ids: Vec<_> = claimed.iter().map(|row| row.0).collect();
    let done = "UPDATE outbox SET status = 'done', done_at = now(), lease_owner = NULL, lease_until = NULL WHERE id = ANY ($1)";
    sqlx::query(done).bind(ids).execute(pool).await.unwrap();
}
