//! What the SDK must not try again by itself.

use aws_sdk_sqs::config::retry::{ClassifyRetry, RetryAction};
use aws_sdk_sqs::error::ProvideErrorMetadata as _;
use aws_sdk_sqs::operation::send_message_batch::SendMessageBatchError;
use aws_smithy_runtime_api::client::interceptors::context::InterceptorContext;
use aws_smithy_runtime_api::client::retries::classifiers::RetryClassifierPriority;

use crate::outcome::Trouble;
use crate::publisher::classify::{Failure, Fault, request_fault};

/// A throttled request comes back at once. The dispatcher paces by what it hears of: a second try that the SDK makes and
/// that succeeds would hide the first, and a queue at its limit would be asked twice for everything it takes.
#[derive(Debug)]
pub(super) struct ThrottlingComesBack;

impl ClassifyRetry for ThrottlingComesBack {
    fn classify_retry(&self, context: &InterceptorContext) -> RetryAction {
        let refused = context.output_or_error().and_then(Result::err).and_then(|error| error.as_operation_error());
        let code = refused.and_then(|error| error.downcast_ref::<SendMessageBatchError>()).and_then(|e| e.code());
        let Some(response) = context.response() else { return RetryAction::NoActionIndicated };
        let refusal = Failure::Refused { code: code.map(str::to_owned), status: response.status().as_u16() };
        if request_fault(&refusal) == Fault::Destination(Trouble::Throttled) {
            RetryAction::RetryForbidden
        } else {
            RetryAction::NoActionIndicated
        }
    }

    fn name(&self) -> &'static str {
        "throttling comes back"
    }

    fn priority(&self) -> RetryClassifierPriority {
        RetryClassifierPriority::run_after(RetryClassifierPriority::transient_error_classifier())
    }
}
