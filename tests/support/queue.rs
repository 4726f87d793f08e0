//! One queue a test, on LocalStack or on the SQS that can be broken, deleted with its value.

use std::collections::BTreeMap;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};

use super::sqs::Sqs;

/// Who keeps a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// That of `make test`.
    LocalStack,
    /// One in this process, of the queue's own.
    Breakable,
}

impl Server {
    /// What holds on one has to hold on the other.
    pub const ALL: [Self; 2] = [Self::LocalStack, Self::Breakable];
}

/// A queue with a name of its own.
#[derive(Debug)]
pub struct Queue {
    client: Client,
    endpoint: String,
    name: String,
    url: String,
    sqs: Option<Sqs>,
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
    /// An empty FIFO queue of LocalStack that takes 1 MiB.
    pub async fn fifo() -> Self {
        Self::fifo_of(1 << 20).await
    }

    /// An empty FIFO queue of LocalStack that takes messages of so many bytes.
    pub async fn fifo_of(maximum_message_size: usize) -> Self {
        Self::fifo_on(Server::LocalStack, maximum_message_size).await
    }

    /// An empty FIFO queue that takes messages of so many bytes.
    pub async fn fifo_on(server: Server, maximum_message_size: usize) -> Self {
        let size = maximum_message_size.to_string();
        let attributes =
            [(QueueAttributeName::FifoQueue, "true"), (QueueAttributeName::MaximumMessageSize, size.as_str())];
        Self::create(server, &format!("{}.fifo", random_name()), &attributes).await
    }

    /// An empty standard queue of LocalStack.
    pub async fn standard() -> Self {
        Self::standard_on(Server::LocalStack).await
    }

    /// An empty standard queue.
    pub async fn standard_on(server: Server) -> Self {
        Self::create(server, &random_name(), &[]).await
    }

    async fn create(server: Server, name: &str, attributes: &[(QueueAttributeName, &str)]) -> Self {
        let sqs = match server {
            Server::LocalStack => None,
            Server::Breakable => Some(Sqs::start()),
        };
        let endpoint = sqs.as_ref().map_or_else(localstack, Sqs::endpoint);
        let client = client(&endpoint).await;
        let url = create(&client, name, attributes).await;
        Self { client, endpoint, name: name.to_owned(), url, sqs }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// A client for what this type cannot do.
    pub fn client(&self) -> &Client {
        &self.client
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
        if self.sqs.is_some() {
            return;
        }
        let (endpoint, url) = (self.endpoint.clone(), self.url.clone());
        // Drop is not async, and the test's own runtime may be gone: a thread with a runtime of its own
        let deleted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // a test may have deleted it already
            runtime.block_on(async { client(&endpoint).await.delete_queue().queue_url(url).send().await.is_ok() })
        });
        if deleted.join().is_err() {
            eprintln!("queue {} was left behind", self.url);
        }
    }
}

fn random_name() -> String {
    format!("outbox-test-{}-{:016x}", std::process::id(), rand::random::<u64>())
}

fn localstack() -> String {
    std::env::var("AWS_ENDPOINT_URL").expect("AWS_ENDPOINT_URL is not set: run the tests with `make test`")
}

async fn client(endpoint: &str) -> Client {
    Client::new(&aws_config::from_env().endpoint_url(endpoint).load().await)
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
