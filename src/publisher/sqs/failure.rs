//! Turns an error of the AWS SDK into what the classification needs and what people read.

use std::error::Error;

use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};

use crate::publisher::classify::Failure;
use crate::publisher::reply::describe;

/// A request that failed as a whole.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) failure: Failure,
    /// One line that names the step.
    pub(super) text: String,
}

impl Failed {
    /// `step` is the call that failed.
    pub(super) fn of<E>(step: &str, error: &SdkError<E, HttpResponse>) -> Self
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        match error {
            SdkError::ServiceError(context) if !context.raw().status().is_success() => {
                let status = context.raw().status().as_u16();
                let (code, message) = (context.err().code(), context.err().message());
                let text = describe(&format!("{step}: HTTP {status}"), code, message);
                Self { failure: Failure::Refused { code: code.map(str::to_owned), status }, text }
            }
            // a success that cannot be read is a service error to the SDK, or a response error where it was cut off
            SdkError::ServiceError(_) | SdkError::ResponseError(_) => Self::garbled(step, error),
            SdkError::TimeoutError(_) => {
                Self { failure: Failure::TimedOut, text: describe(step, Some("no reply in time"), None) }
            }
            SdkError::DispatchFailure(context) if !context.is_user() => {
                Self { failure: Failure::NoReply, text: describe(step, Some("no reply"), Some(&root(error))) }
            }
            _ => Self { failure: Failure::NotBuilt, text: describe(step, Some("not sent"), Some(&root(error))) },
        }
    }

    fn garbled(step: &str, error: &(dyn Error + 'static)) -> Self {
        Self {
            failure: Failure::Garbled,
            text: describe(step, Some("a reply that is none of SQS"), Some(&root(error))),
        }
    }
}

/// The first cause, which says most. Of credentials nothing but that they are missing: what a credential process or
/// a profile holds is nobody's to log.
fn root(error: &(dyn Error + 'static)) -> String {
    let chain: Vec<_> =
        std::iter::successors(Some(error), |error| (*error).source()).map(ToString::to_string).collect();
    if chain.iter().any(|text| text.contains("credential") || text.contains("identity")) {
        return "AWS credentials could not be loaded".to_owned();
    }
    chain.into_iter().last().unwrap_or_default()
}
