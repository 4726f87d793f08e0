//! Whose fault a refusal is. Pure: error codes in, a [`Fault`] out.
//!
//! The codes are those of the SQS service model and of the list "Common Errors" of the SQS API reference. The same
//! error is spelled in several ways: `AWS.SimpleQueueService.NonExistentQueue` in the query protocol,
//! `QueueDoesNotExist` in JSON, some with `Exception` at the end; here a code counts without prefix and suffix.

use crate::outcome::Trouble;

/// Who has to change something before the message can be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The message itself, for ever.
    Message,
    /// The message perhaps, or a moment of the broker's: worth another try.
    Passing,
    /// The destination.
    Destination(Trouble),
    /// The message or the destination: told apart by whether others get through meanwhile.
    Either,
    /// Nobody thought of this one.
    Unknown,
}

/// What an error code speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// What was sent.
    Content,
    /// SQS had an error of its own.
    Internal,
    /// What the destination is troubled by.
    Trouble(Trouble),
}

/// A request that got no reply which could be believed entry by entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing came back: refused or reset.
    NoReply,
    /// Nothing was sent: there were no credentials to sign with.
    NoCredentials,
    /// Nothing came back in time.
    TimedOut,
    /// Something came back that is not a reply of SQS, so nobody knows what was accepted.
    Garbled,
    /// A refusal of the whole request.
    Refused {
        /// The error code, if there was one.
        code: Option<String>,
        /// The HTTP status.
        status: u16,
    },
    /// The SDK could not even make the request.
    NotBuilt,
}

/// What this code speaks of; `None`: not known here.
#[expect(clippy::match_same_arms, reason = "codes are listed by what they speak of")]
pub(crate) fn cause(code: &str) -> Option<Cause> {
    let code = code.rsplit('#').next().unwrap_or(code);
    let code = code.strip_prefix("AWS.SimpleQueueService.").unwrap_or(code);
    let code = code.strip_suffix("Exception").unwrap_or(code);
    Some(match code {
        "InvalidMessageContents"
        | "InvalidParameterValue"
        | "InvalidParameterCombination"
        | "InvalidAttributeValue"
        | "InvalidAttributeName"
        | "MissingParameter"
        | "MissingRequiredParameter"
        | "BatchRequestTooLong"
        | "ValidationError"
        | "Validation" => Cause::Content,
        "InternalError" | "InternalFailure" | "InternalServerError" | "InternalServer" | "ServiceUnavailable" => {
            Cause::Internal
        }
        "QueueDoesNotExist"
        | "NonExistentQueue"
        | "QueueDeletedRecently"
        | "ResourceNotFound"
        | "InvalidAddress"
        | "UnsupportedOperation" => Cause::Trouble(Trouble::Queue),
        "AccessDenied" | "NotAuthorized" | "AuthFailure" | "OptInRequired" => Cause::Trouble(Trouble::Access),
        "ExpiredToken"
        | "InvalidClientTokenId"
        | "UnrecognizedClient"
        | "InvalidSignature"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "InvalidAccessKeyId"
        | "TokenRefreshRequired"
        | "RequestExpired"
        | "RequestTimeTooSkewed" => Cause::Trouble(Trouble::Credentials),
        "RequestThrottled"
        | "Throttling"
        | "Throttled"
        | "TooManyRequests"
        | "RequestLimitExceeded"
        | "BandwidthLimitExceeded"
        | "LimitExceeded"
        | "ProvisionedThroughputExceeded"
        | "SlowDown"
        | "PriorRequestNotComplete"
        | "OverLimit" => Cause::Trouble(Trouble::Throttled),
        "InvalidSecurity" | "InvalidAction" | "MissingAction" | "UnknownOperation" | "RequestTimeout" => {
            Cause::Trouble(Trouble::Endpoint)
        }
        // wants fewer requests, like any other throttling
        "KMS.Throttling" | "KmsThrottled" => Cause::Trouble(Trouble::Throttled),
        // KMS.AccessDenied, KMS.Disabled, KMS.InvalidKeyUsage, KMS.InvalidState, KMS.NotFound, KMS.OptInRequired;
        // KmsAccessDenied and so on in JSON
        _ if code.starts_with("KMS.") || code.starts_with("Kms") => Cause::Trouble(Trouble::Kms),
        // How the request was put together, and no message is to die for that; and codes of the service model that
        // belong to other operations than sending.
        "EmptyBatchRequest"
        | "TooManyEntriesInBatchRequest"
        | "InvalidBatchEntryId"
        | "BatchEntryIdsNotDistinct"
        | "InvalidIdFormat"
        | "MessageNotInflight"
        | "PurgeQueueInProgress"
        | "QueueNameExists"
        | "ReceiptHandleIsInvalid" => return None,
        _ => return None,
    })
}

/// Whose fault the refusal of one entry is.
///
/// SQS sets `sender_fault` on everything the caller could change, throttling and a missing key included: the code
/// decides first.
pub(crate) fn entry_fault(code: &str, sender_fault: bool) -> Fault {
    match cause(code) {
        Some(Cause::Content) if sender_fault => Fault::Message,
        // a content code that SQS takes the blame for contradicts itself: nothing to die for at once
        Some(Cause::Content) => Fault::Passing,
        Some(Cause::Internal) => Fault::Either,
        Some(Cause::Trouble(trouble)) => Fault::Destination(trouble),
        None => Fault::Unknown,
    }
}

/// Whose fault the failure of a whole request is.
pub(crate) fn request_fault(failure: &Failure) -> Fault {
    match failure {
        Failure::NoReply | Failure::Garbled => Fault::Destination(Trouble::Network),
        Failure::NoCredentials => Fault::Destination(Trouble::Credentials),
        Failure::TimedOut => Fault::Either,
        Failure::NotBuilt => Fault::Unknown,
        Failure::Refused { code, status } => match code.as_deref().and_then(cause) {
            Some(Cause::Content) => Fault::Message,
            Some(Cause::Internal) => Fault::Destination(Trouble::Internal),
            Some(Cause::Trouble(trouble)) => Fault::Destination(trouble),
            None => status_fault(*status),
        },
    }
}

/// What a status says where there is no code we know: a proxy in between has no codes at all.
fn status_fault(status: u16) -> Fault {
    Fault::Destination(match status {
        413 => return Fault::Message,
        429 => Trouble::Throttled,
        401 | 407 => Trouble::Credentials,
        403 => Trouble::Access,
        300..=399 | 404 | 408 => Trouble::Endpoint,
        500.. => Trouble::Internal,
        _ => return Fault::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: &[&str] = &[
        "InvalidMessageContents",
        "InvalidParameterValue",
        "InvalidParameterValueException",
        "InvalidAttributeValue",
        "MissingRequiredParameterException",
        "AWS.SimpleQueueService.BatchRequestTooLong",
        "com.amazonaws.sqs#BatchRequestTooLong",
    ];

    const DESTINATION: &[(&str, Trouble)] = &[
        ("AWS.SimpleQueueService.NonExistentQueue", Trouble::Queue),
        ("AWS.SimpleQueueService.QueueDeletedRecently", Trouble::Queue),
        ("AWS.SimpleQueueService.UnsupportedOperation", Trouble::Queue),
        ("AccessDenied", Trouble::Access),
        ("AccessDeniedException", Trouble::Access),
        ("ExpiredToken", Trouble::Credentials),
        ("ExpiredTokenException", Trouble::Credentials),
        ("InvalidAddress", Trouble::Queue),
        ("InvalidClientTokenId", Trouble::Credentials),
        ("InvalidSecurity", Trouble::Endpoint),
        ("InvalidSignatureException", Trouble::Credentials),
        ("KMS.AccessDeniedException", Trouble::Kms),
        ("KMS.DisabledException", Trouble::Kms),
        ("KMS.InvalidKeyUsageException", Trouble::Kms),
        ("KMS.InvalidStateException", Trouble::Kms),
        ("KMS.NotFoundException", Trouble::Kms),
        ("KMS.OptInRequired", Trouble::Kms),
        ("KmsAccessDenied", Trouble::Kms),
        ("KmsDisabled", Trouble::Kms),
        ("KmsInvalidKeyUsage", Trouble::Kms),
        ("KmsInvalidState", Trouble::Kms),
        ("KmsNotFound", Trouble::Kms),
        ("KmsOptInRequired", Trouble::Kms),
        ("KMS.ThrottlingException", Trouble::Throttled),
        ("KmsThrottled", Trouble::Throttled),
        ("OverLimit", Trouble::Throttled),
        ("QueueDoesNotExist", Trouble::Queue),
        ("RequestThrottled", Trouble::Throttled),
        ("ResourceNotFoundException", Trouble::Queue),
        ("SignatureDoesNotMatch", Trouble::Credentials),
        ("Throttling", Trouble::Throttled),
        ("ThrottlingException", Trouble::Throttled),
        ("UnrecognizedClientException", Trouble::Credentials),
    ];

    const INTERNAL: &[&str] = &["InternalError", "InternalFailure", "InternalServerError", "ServiceUnavailable"];

    const UNKNOWN: &[&str] = &[
        "",
        "Exception",
        "AWS.SimpleQueueService.BatchEntryIdsNotDistinct",
        "AWS.SimpleQueueService.EmptyBatchRequest",
        "AWS.SimpleQueueService.InvalidBatchEntryId",
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        "InvalidIdFormat",
        "MessageNotInflight",
        "PurgeQueueInProgress",
        "QueueNameExists",
        "ReceiptHandleIsInvalid",
        "SerializationException",
        "NeverHeardOf",
    ];

    fn refused(code: Option<&str>, status: u16) -> Fault {
        request_fault(&Failure::Refused { code: code.map(str::to_owned), status })
    }

    // C10
    #[test]
    fn an_entry_refused_for_its_content_is_the_messages_fault_if_sqs_says_so() {
        for code in CONTENT {
            assert_eq!(entry_fault(code, true), Fault::Message, "{code}");
            assert_eq!(entry_fault(code, false), Fault::Passing, "{code}");
        }
    }

    // C20 C21 C22
    #[test]
    fn trouble_of_the_destination_is_never_a_messages_fault_even_if_sqs_blames_the_sender() {
        for (code, trouble) in DESTINATION {
            for sender_fault in [true, false] {
                assert_eq!(entry_fault(code, sender_fault), Fault::Destination(*trouble), "{code}");
            }
            for status in [400, 403, 500] {
                assert_eq!(refused(Some(code), status), Fault::Destination(*trouble), "{code}");
            }
        }
    }

    #[test]
    fn an_internal_error_may_pass_for_one_entry_and_is_an_outage_for_a_request() {
        for code in INTERNAL {
            assert_eq!(entry_fault(code, false), Fault::Either, "{code}");
            assert_eq!(refused(Some(code), 500), Fault::Destination(Trouble::Internal), "{code}");
        }
    }

    #[test]
    fn a_request_refused_for_its_content_holds_a_guilty_message() {
        for code in CONTENT {
            assert_eq!(refused(Some(code), 400), Fault::Message, "{code}");
        }
        assert_eq!(refused(None, 413), Fault::Message);
    }

    #[test]
    fn a_code_nobody_thought_of_is_unknown() {
        for code in UNKNOWN {
            for sender_fault in [true, false] {
                assert_eq!(entry_fault(code, sender_fault), Fault::Unknown, "{code}");
            }
            assert_eq!(refused(Some(code), 400), Fault::Unknown, "{code}");
        }
        assert_eq!(refused(None, 400), Fault::Unknown);
        assert_eq!(request_fault(&Failure::NotBuilt), Fault::Unknown);
    }

    #[test]
    fn a_status_speaks_where_no_known_code_does() {
        for (trouble, statuses) in [
            (Trouble::Endpoint, [301, 307, 404, 408]),
            (Trouble::Internal, [500, 502, 503, 599]),
            (Trouble::Credentials, [401, 407, 401, 407]),
            (Trouble::Access, [403; 4]),
            (Trouble::Throttled, [429; 4]),
        ] {
            for status in statuses {
                assert_eq!(refused(None, status), Fault::Destination(trouble), "{status}");
                assert_eq!(refused(Some("NeverHeardOf"), status), Fault::Destination(trouble), "{status}");
            }
        }
    }

    #[test]
    fn a_reply_that_never_came_or_cannot_be_read_is_the_destinations_fault() {
        assert_eq!(request_fault(&Failure::NoReply), Fault::Destination(Trouble::Network));
        assert_eq!(request_fault(&Failure::Garbled), Fault::Destination(Trouble::Network));
        assert_eq!(request_fault(&Failure::NoCredentials), Fault::Destination(Trouble::Credentials));
        assert_eq!(request_fault(&Failure::TimedOut), Fault::Either);
    }
}
