//! An independent consumer: receives, checks, deletes. It knows the queues and the message attributes, not the crate.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message, MessageSystemAttributeName};
use serde::Deserialize;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::board::Board;
use crate::queues::Queues;
use crate::tracker::Delivery;

/// Receive loops. The payments queue has one message group, of which one batch is in flight at a time: a second loop
/// would find nothing.
const ORDER_LOOPS: usize = 2;
const PAYMENT_LOOPS: usize = 1;
/// Long enough to check and delete ten messages, short enough to see again what a lost reply held back.
const VISIBILITY_SECONDS: i32 = 20;
const WAIT_SECONDS: i32 = 1;

/// The receive loops; they end when `stop` is cancelled, or with the first error.
pub(crate) fn start(queues: &Queues, run: &str, board: &Arc<Board>, stop: &CancellationToken) -> JoinSet<Result<()>> {
    let mut loops: JoinSet<Result<()>> = JoinSet::new();
    for (url, count) in [(&queues.orders, ORDER_LOOPS), (&queues.payments, PAYMENT_LOOPS)] {
        for _ in 0..count {
            let consumer = Consumer {
                client: queues.client.clone(),
                url: url.clone(),
                run: run.to_owned(),
                board: Arc::clone(board),
            };
            let stop = stop.clone();
            loops.spawn(async move {
                while !stop.is_cancelled() {
                    consumer.receive().await?;
                }
                Ok(())
            });
        }
    }
    loops
}

struct Consumer {
    client: aws_sdk_sqs::Client,
    url: String,
    run: String,
    board: Arc<Board>,
}

#[derive(Deserialize)]
struct Body {
    seq: i64,
}

impl Consumer {
    /// One batch. A group's next messages are not handed out before this batch is deleted, so parallel loops cannot
    /// mix up an aggregate as long as each one works before it deletes.
    async fn receive(&self) -> Result<()> {
        let reply = self
            .client
            .receive_message()
            .queue_url(&self.url)
            .max_number_of_messages(10)
            .wait_time_seconds(WAIT_SECONDS)
            .visibility_timeout(VISIBILITY_SECONDS)
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::MessageGroupId)
            .send()
            .await
            .with_context(|| format!("cannot receive from {}", self.url))?;
        let messages = reply.messages.unwrap_or_default();
        for message in &messages {
            self.apply(message).with_context(|| format!("{} holds a message that makes no sense", self.url))?;
        }
        self.delete(&messages).await
    }

    fn apply(&self, message: &Message) -> Result<()> {
        if attribute(message, "demo-run") != Some(&self.run) {
            self.board.foreign.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let delivery = Delivery {
            id: attribute(message, "outbox-id").context("no attribute outbox-id")?.parse()?,
            aggregate: message
                .attributes()
                .and_then(|system| system.get(&MessageSystemAttributeName::MessageGroupId))
                .context("no message group")?
                .clone(),
            seq: serde_json::from_str::<Body>(message.body().context("no body")?)?.seq,
        };
        let sent = attribute(message, "demo-sent-us").context("no attribute demo-sent-us")?.parse()?;
        self.board.record(&delivery, Duration::from_micros(sent));
        Ok(())
    }

    /// An entry that is not deleted comes again, and then counts as a duplicate: no reason to fail.
    async fn delete(&self, messages: &[Message]) -> Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let entries = messages
            .iter()
            .enumerate()
            .map(|(place, message)| {
                DeleteMessageBatchRequestEntry::builder()
                    .id(place.to_string())
                    .set_receipt_handle(message.receipt_handle.clone())
                    .build()
            })
            .collect::<Result<Vec<_>, _>>()?;
        self.client
            .delete_message_batch()
            .queue_url(&self.url)
            .set_entries(Some(entries))
            .send()
            .await
            .with_context(|| format!("cannot delete from {}", self.url))?;
        Ok(())
    }
}

fn attribute<'m>(message: &'m Message, name: &str) -> Option<&'m str> {
    message.message_attributes()?.get(name)?.string_value()
}
