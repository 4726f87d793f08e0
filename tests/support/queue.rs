//! One queue a test, on the SQS stand-in of `make test`, deleted with its value.

use std::collections::BTreeMap;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};

/// A queue with a name of its own.
#[derive(Debug)]
pub struct Queue {
    client: Client,
    name: String,
    url: String,
}

/// A message as a consumer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The body.
    pub body: String,
    /// Message group id.
    pub group: String,
    /// Deduplication id.
    pub deduplication_id: String,
    /// The queue's id of the message.
    pub message_id: String,
    /// Sequence number.
    pub sequence: String,
    /// Type and value by attribute name.
    pub attributes: BTreeMap<String, (String, String)>,
}

impl Received {
    /// The row id in its attributes.
    pub fn outbox_id(&self) -> i64 {
        self.attributes["outbox-id"].1.parse().unwrap()
    }
}

impl Queue {
    /// An empty FIFO queue that takes 1 MiB.
    pub async fn fifo() -> Self {
        Self::fifo_of(1 << 20).await
    }

    /// An empty FIFO queue that takes messages of so many bytes.
    pub async fn fifo_of(maximum_message_size: usize) -> Self {
        let size = maximum_message_size.to_string();
        let attributes =
            [(QueueAttributeName::FifoQueue, "true"), (QueueAttributeName::MaximumMessageSize, size.as_str())];
        Self::create(&format!("{}.fifo", random_name()), &attributes).await
    }

    /// An empty standard queue.
    pub async fn standard() -> Self {
        Self::create(&random_name(), &[]).await
    }

    async fn create(name: &str, attributes: &[(QueueAttributeName, &str)]) -> Self {
        let client = client().await;
        let url = create(&client, name, attributes).await;
        Self { client, name: name.to_owned(), url }
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Deletes it before its time.
    pub async fn delete(&self) {
        self.client.delete_queue().queue_url(&self.url).send().await.unwrap();
    }

    /// Creates it again, empty, as a FIFO queue of the same URL.
    pub async fn create_again(&self) {
        let url = create(&self.client, &self.name, &[(QueueAttributeName::FifoQueue, "true")]).await;
        assert_eq!(url, self.url);
    }

    /// Receives and deletes until the queue is empty; the messages in the order received.
    pub async fn receive_all(&self) -> Vec<Received> {
        let mut received = Vec::new();
        loop {
            let request = self
                .client
                .receive_message()
                .queue_url(&self.url)
                .max_number_of_messages(10)
                .message_attribute_names("All")
                .message_system_attribute_names(MessageSystemAttributeName::All);
            let messages = request.send().await.unwrap().messages.unwrap_or_default();
            if messages.is_empty() {
                return received;
            }
            for message in messages {
                let handle = message.receipt_handle().unwrap();
                self.client.delete_message().queue_url(&self.url).receipt_handle(handle).send().await.unwrap();
                received.push(read(message));
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let url = self.url.clone();
        // Drop is not async, and the test's own runtime may be gone: a thread with a runtime of its own
        let deleted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // a test may have deleted it already
            runtime.block_on(async { client().await.delete_queue().queue_url(url).send().await.is_ok() })
        });
        if deleted.join().is_err() {
            eprintln!("queue {} was left behind", self.url);
        }
    }
}

fn random_name() -> String {
    format!("outbox-test-{}-{:016x}", std::process::id(), rand::random::<u64>())
}

async fn client() -> Client {
    assert!(
        std::env::var_os("AWS_ENDPOINT_URL").is_some(),
        "AWS_ENDPOINT_URL is not set: run the tests with `make test`"
    );
    Client::new(&aws_config::load_from_env().await)
}

async fn create(client: &Client, name: &str, attributes: &[(QueueAttributeName, &str)]) -> String {
    let request = attributes.iter().fold(client.create_queue().queue_name(name), |request, (name, value)| {
        request.attributes(name.clone(), *value)
    });
    request.send().await.unwrap().queue_url.unwrap()
}

fn read(message: aws_sdk_sqs::types::Message) -> Received {
    let system = message.attributes.unwrap();
    let system = |name| system.get(&name).cloned().unwrap_or_default();
    let attributes = message.message_attributes.unwrap_or_default().into_iter();
    Received {
        body: message.body.unwrap(),
        group: system(MessageSystemAttributeName::MessageGroupId),
        deduplication_id: system(MessageSystemAttributeName::MessageDeduplicationId),
        message_id: message.message_id.unwrap(),
        sequence: system(MessageSystemAttributeName::SequenceNumber),
        attributes: attributes.map(|(name, a)| (name, (a.data_type, a.string_value.unwrap()))).collect(),
    }
}
