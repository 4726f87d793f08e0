//! What SQS tells of a queue.

use std::collections::HashMap;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::QueueAttributeName;

use super::SqsError;
use super::failure::Failed;
use crate::outcome::Trouble;
use crate::publisher::classify::{Cause, Failure, cause};
use crate::sendable::MAX_BYTES;

/// The attributes of a queue, as `GetQueueAttributes` tells them.
#[derive(Debug)]
pub(super) struct Attributes(HashMap<QueueAttributeName, String>);

impl Attributes {
    pub(super) async fn read(client: &Client, url: &str) -> Result<Self, SqsError> {
        // All, because AWS answers an error to a standard queue that is asked for FifoQueue by name
        let request = client.get_queue_attributes().queue_url(url).attribute_names(QueueAttributeName::All);
        let reply = request.send().await.map_err(|error| refused(url, Failed::of("GetQueueAttributes", &error)))?;
        Ok(Self(reply.attributes.unwrap_or_default()))
    }

    pub(super) fn get(&self, name: &QueueAttributeName) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn is_fifo(&self) -> bool {
        self.get(&QueueAttributeName::FifoQueue) == Some("true")
    }

    /// The most bytes the queue takes in a message.
    pub(super) fn max_bytes(&self) -> usize {
        let maximum = self.get(&QueueAttributeName::MaximumMessageSize).and_then(|text| text.parse().ok());
        maximum.unwrap_or(MAX_BYTES).min(MAX_BYTES)
    }
}

fn refused(url: &str, failed: Failed) -> SqsError {
    let (url, problem) = (url.to_owned(), failed.text);
    match failed.failure {
        Failure::NoReply | Failure::TimedOut | Failure::Garbled => SqsError::Unreachable { url, problem },
        Failure::NoCredentials => SqsError::NoCredentials,
        Failure::Refused { code: Some(code), .. } => match cause(&code) {
            Some(Cause::Trouble(Trouble::Queue)) => SqsError::QueueMissing { url, code },
            Some(Cause::Trouble(Trouble::Access)) => SqsError::AccessDenied { url, code },
            Some(Cause::Trouble(Trouble::Credentials)) => SqsError::CredentialsRefused(code),
            _ => SqsError::Check { url, problem },
        },
        Failure::Refused { code: None, .. } | Failure::NotBuilt => SqsError::Check { url, problem },
    }
}
