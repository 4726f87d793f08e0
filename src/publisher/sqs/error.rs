//! Why a start was refused. Each text is one sentence with its remedy.

use crate::publisher::preflight::MAX_SOURCE_BYTES;

/// Start was refused; nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SqsError {
    /// The routes name no queue.
    #[error("no queue is routed: give one queue URL, or one an aggregate type")]
    NoRoutes,
    /// The source name cannot be part of a deduplication id.
    #[error(
        "source name {0:?} is not usable: choose 1 to {MAX_SOURCE_BYTES} ASCII letters, digits and punctuation, no space"
    )]
    Source(String),
    /// Not the URL of a queue.
    #[error("queue URL {url:?} {problem}: give it as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.fifo")]
    MalformedUrl {
        /// Without user name, password and query.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The AWS default chain finds no region.
    #[error("no AWS region is configured: set AWS_REGION, or a region in the AWS profile")]
    NoRegion,
    /// The URL does not tell its region, and no endpoint says where to go instead.
    #[error(
        "queue URL {0} does not tell its region: give it as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.fifo, or set \
         AWS_ENDPOINT_URL if it is not at AWS"
    )]
    RegionUnknown(String),
    /// The URL is of another region than the one configured.
    #[error("queue URL {url} is in region {actual}, but {configured} is configured: set AWS_REGION={actual}")]
    RegionMismatch {
        /// The queue's URL.
        url: String,
        /// Its region.
        actual: String,
        /// The region of the AWS default chain.
        configured: String,
    },
    /// A standard queue keeps no order.
    #[error("{0} is a standard queue, which keeps no order: create a FIFO queue, whose name ends in .fifo")]
    StandardQueue(String),
    /// There is no such queue.
    #[error("there is no queue {url} ({code}): create it, or correct account, region and name in the URL")]
    QueueMissing {
        /// The queue's URL.
        url: String,
        /// What SQS called it.
        code: String,
    },
    /// The AWS default chain finds no credentials.
    #[error(
        "no AWS credentials could be loaded: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or attach \
         a role; `aws sts get-caller-identity` shows what is found"
    )]
    NoCredentials,
    /// SQS does not accept the credentials.
    #[error("SQS does not accept the AWS credentials ({0}): renew them, and check the clock of this machine")]
    CredentialsRefused(String),
    /// The credentials may not read the queue.
    #[error("access to queue {url} is denied ({code}): allow sqs:GetQueueAttributes and sqs:SendMessage on it")]
    AccessDenied {
        /// The queue's URL.
        url: String,
        /// What SQS called it.
        code: String,
    },
    /// SQS gives no usable reply.
    #[error("SQS cannot be reached for queue {url} ({problem}): check network, region and AWS_ENDPOINT_URL")]
    Unreachable {
        /// The queue's URL.
        url: String,
        /// What went wrong.
        problem: String,
    },
    /// Anything else.
    #[error("queue {url} could not be checked ({problem}): correct that, or start again if it may pass")]
    Check {
        /// The queue's URL.
        url: String,
        /// What went wrong.
        problem: String,
    },
}
