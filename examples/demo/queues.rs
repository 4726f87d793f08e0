//! The two queues.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName::{
    self, ApproximateNumberOfMessages, ApproximateNumberOfMessagesNotVisible, ContentBasedDeduplication, FifoQueue,
};

/// A client and the URLs of both queues.
#[derive(Clone)]
pub(crate) struct Queues {
    pub(crate) client: Client,
    pub(crate) orders: String,
    pub(crate) payments: String,
}

impl Queues {
    /// Creates the queues, or finds them, and empties them: an interrupted demo leaves messages behind, whose groups
    /// have the same names as ours.
    pub(crate) async fn create() -> Result<Self> {
        let client = Client::new(&aws_config::load_from_env().await);
        let orders = create(&client, "orders.fifo").await?;
        let payments = create(&client, "payments.fifo").await?;
        for url in [&orders, &payments] {
            match client.purge_queue().queue_url(url).send().await.map_err(aws_sdk_sqs::Error::from) {
                // Somebody purged within the last minute. What is left is told apart by its run, and dropped.
                Ok(_) | Err(aws_sdk_sqs::Error::PurgeQueueInProgress(_)) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot purge {url}")),
            }
        }
        Ok(Self { client, orders, payments })
    }

    /// Waits until both queues hold nothing, in flight or not.
    pub(crate) async fn until_empty(&self) -> Result<()> {
        for url in [&self.orders, &self.payments] {
            while self.depth(url).await? > 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        Ok(())
    }

    async fn depth(&self, url: &str) -> Result<u64> {
        let counts = [ApproximateNumberOfMessages, ApproximateNumberOfMessagesNotVisible];
        let reply = self
            .client
            .get_queue_attributes()
            .queue_url(url)
            .set_attribute_names(Some(counts.to_vec()))
            .send()
            .await
            .with_context(|| format!("cannot read the depth of {url}"))?;
        let attributes = reply.attributes.unwrap_or_default();
        counts.iter().map(|name| count(&attributes, name)).sum()
    }
}

fn count(attributes: &HashMap<QueueAttributeName, String>, name: &QueueAttributeName) -> Result<u64> {
    let text = attributes.get(name).with_context(|| format!("the queue does not tell its {name}"))?;
    text.parse().with_context(|| format!("the queue's {name} is {text:?}"))
}

/// Asking again for a queue with the same attributes is allowed.
async fn create(client: &Client, name: &str) -> Result<String> {
    let reply = client
        .create_queue()
        .queue_name(name)
        .attributes(FifoQueue, "true")
        .attributes(ContentBasedDeduplication, "false")
        .send()
        .await
        .with_context(|| format!("cannot create {name}: is AWS_ENDPOINT_URL right, and LocalStack running?"))?;
    reply.queue_url.with_context(|| format!("the queue {name} has no URL"))
}
