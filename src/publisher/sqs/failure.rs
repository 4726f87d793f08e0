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
            SdkError::DispatchFailure(_) if is_of_credentials(error) => {
                let text = describe(step, Some("not sent"), Some("AWS credentials could not be loaded"));
                Self { failure: Failure::NoCredentials, text }
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

/// What a credential process or a profile holds is nobody's to log: of credentials nothing is told but that they are
/// missing.
fn is_of_credentials(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|text| text.contains("credential") || text.contains("identity"))
}

/// The first cause, which says most.
fn root(error: &(dyn Error + 'static)) -> String {
    if is_of_credentials(error) {
        return "AWS credentials could not be loaded".to_owned();
    }
    causes(error).last().unwrap_or_default()
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = String> + 'a {
    std::iter::successors(Some(error), |error| (*error).source()).map(ToString::to_string)
}
