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
            SdkError::ServiceError(context) => {
                let status = context.raw().status().as_u16();
                let (code, message) = (context.err().code(), context.err().message());
                let text = describe(&format!("{step}: HTTP {status}"), code, message);
                Self { failure: Failure::Refused { code: code.map(str::to_owned), status }, text }
            }
            SdkError::ResponseError(context) => {
                let status = context.raw().status().as_u16();
                let text =
                    describe(&format!("{step}: HTTP {status} with an unreadable reply"), None, Some(&root(error)));
                // an error page of a proxy is not JSON either: its status still speaks
                let failure = if context.raw().status().is_success() {
                    Failure::Garbled
                } else {
                    Failure::Refused { code: None, status }
                };
                Self { failure, text }
            }
            SdkError::TimeoutError(_) => {
                Self { failure: Failure::NoReply, text: describe(step, Some("no reply in time"), None) }
            }
            SdkError::DispatchFailure(context) if !context.is_user() => {
                Self { failure: Failure::NoReply, text: describe(step, Some("no reply"), Some(&root(error))) }
            }
            _ => Self { failure: Failure::NotBuilt, text: describe(step, Some("not sent"), Some(&root(error))) },
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
