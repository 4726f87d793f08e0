//! Eight producers: business changes, each with its message in the same transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use ordered_outbox::{NewMessage, enqueue};
use serde_json::json;
use sqlx::{PgPool, Postgres, Transaction};
use tokio::task::JoinSet;

use crate::board::Board;

/// The events of an order, in order.
pub(crate) const LIFECYCLE: [&str; 5] =
    ["OrderPlaced", "PaymentAuthorized", "PaymentCaptured", "OrderShipped", "OrderClosed"];
/// Which of them the poison order's bank garbles, counted from 1.
pub(crate) const POISON_SEQ: i64 = 2;

const PRODUCERS: usize = 8;
/// So few orders are open at a time that producers meet at the same row: the lock has something to do.
const OPEN_ORDERS: u64 = 24;
/// One transaction in so many is rolled back after its enqueue, and then repeated.
const ROLL_BACK_EVERY: u64 = 50;
/// U+FFFE is fine in JSON and in PostgreSQL, and SQS refuses a message that holds it.
const ILLEGAL_IN_SQS: char = '\u{FFFE}';

/// A shop with its database.
pub(crate) struct Shop {
    pub(crate) pool: PgPool,
    /// Goes along with each message, so that the consumer knows its own run's.
    pub(crate) run: String,
    pub(crate) board: Arc<Board>,
}

/// Runs every order through its lifecycle.
pub(crate) async fn run(shop: Shop) -> Result<()> {
    sqlx::query(
        "INSERT INTO orders (id, amount_cents) SELECT n, 500 + n * 7919 % 20000 FROM generate_series(1, $1) AS n",
    )
    .bind(shop.board.orders.cast_signed())
    .execute(&shop.pool)
    .await
    .context("cannot fill the carts")?;
    let shop = Arc::new(shop);
    let next = Arc::new(AtomicU64::new(0));
    let mut producers: JoinSet<Result<()>> = JoinSet::new();
    for _ in 0..PRODUCERS {
        let (shop, next) = (Arc::clone(&shop), Arc::clone(&next));
        producers.spawn(async move {
            loop {
                let turn = next.fetch_add(1, Ordering::Relaxed);
                let Some(order) = shop.order_of(turn) else { return Ok(()) };
                shop.take_turn(turn, order).await.with_context(|| format!("cannot advance order {order}"))?;
            }
        });
    }
    while let Some(ended) = producers.join_next().await {
        ended.context("a producer failed")??;
    }
    Ok(())
}

impl Shop {
    /// Which order a turn advances: a few orders round and round until they are closed, then the next few.
    fn order_of(&self, turn: u64) -> Option<u64> {
        let each = OPEN_ORDERS * LIFECYCLE.len() as u64;
        let first = turn / each * OPEN_ORDERS;
        let left = self.board.orders.saturating_sub(first);
        if left == 0 {
            return None;
        }
        let open = left.min(OPEN_ORDERS);
        let round = turn % each;
        // The last few may be fewer: their surplus turns are nobody's.
        (round < open * LIFECYCLE.len() as u64).then(|| first + round % open + 1)
    }

    async fn take_turn(&self, turn: u64, order: u64) -> Result<()> {
        if turn % ROLL_BACK_EVERY == ROLL_BACK_EVERY - 1 {
            let mut tx = self.pool.begin().await?;
            let written = self.advance(&mut tx, order).await?;
            tx.rollback().await?;
            self.board.rolled_back.fetch_add(written, Ordering::Relaxed);
        }
        let mut tx = self.pool.begin().await?;
        let written = self.advance(&mut tx, order).await?;
        tx.commit().await?;
        self.board.committed.fetch_add(written, Ordering::Relaxed);
        Ok(())
    }

    /// One step of an order, whichever is next. Returns how many messages it wrote.
    async fn advance(&self, tx: &mut Transaction<'_, Postgres>, order: u64) -> Result<u64> {
        // The lock comes first. An id is drawn when a message is inserted: without the lock, a second producer could
        // draw the next id of this order and commit before us.
        let (step, amount): (i32, i64) =
            sqlx::query_as("SELECT step, amount_cents FROM orders WHERE id = $1 FOR UPDATE")
                .bind(order.cast_signed())
                .fetch_one(&mut **tx)
                .await?;
        let seq = i64::from(step) + 1;
        let event = *LIFECYCLE.get(usize::try_from(step)?).context("the order is closed already")?;
        sqlx::query("UPDATE orders SET step = step + 1, state = $2 WHERE id = $1")
            .bind(order.cast_signed())
            .bind(event)
            .execute(&mut **tx)
            .await?;
        let payload = json!({ "order": order, "seq": seq, "amount_cents": amount, "bank_text": "approved" });
        let message = NewMessage::new("order", format!("order-{order}"), event, &payload)?;
        let id = enqueue(tx, &self.stamped(message)).await?;
        if order == self.board.poison && seq == POISON_SEQ {
            // as a service does that writes its rows by hand: the library would have refused it
            sqlx::query(
                "UPDATE outbox SET payload = jsonb_set(payload, '{bank_text}', to_jsonb($2::text)) WHERE id = $1",
            )
            .bind(id)
            .bind(format!("approved{ILLEGAL_IN_SQS}"))
            .execute(&mut **tx)
            .await?;
        }
        if event != "PaymentCaptured" {
            return Ok(1);
        }
        // Always the order's row first and the ledger's second, or two producers could wait for each other. The UPDATE
        // takes the lock that the ledger's next id needs.
        let (entry, balance): (i64, i64) = sqlx::query_as(
            "UPDATE merchant_ledger SET entries = entries + 1, balance_cents = balance_cents + $1
             WHERE merchant = 'merchant-1' RETURNING entries, balance_cents",
        )
        .bind(amount)
        .fetch_one(&mut **tx)
        .await?;
        let payload = json!({ "order": order, "seq": entry, "amount_cents": amount, "balance_cents": balance });
        let message = NewMessage::new("payment", "ledger-merchant-1", "LedgerEntryPosted", &payload)?;
        enqueue(tx, &self.stamped(message)).await?;
        Ok(2)
    }

    fn stamped(&self, message: NewMessage) -> NewMessage {
        message.header("demo-run", &self.run).header("demo-sent-us", self.board.elapsed().as_micros().to_string())
    }
}
