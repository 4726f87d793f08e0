use std::time::Duration;

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 20;

fn message(headers: &[(&str, &str)]) -> Message {
    let headers: std::collections::BTreeMap<_, _> = headers.iter().copied().collect();
    Message {
        id: 7,
        lease_version: 1,
        attempts: 1,
        aggregate_type: "order".into(),
        aggregate_id: "order-7".into(),
        event_type: "OrderPlaced".into(),
        payload: "{}".into(),
        headers_json: serde_json::json!(headers).to_string(),
        first_tried: None,
        age: Duration::ZERO,
    }
}

fn refused(change: impl FnOnce(&mut Message)) -> String {
    let mut message = message(&[]);
    change(&mut message);
    check(&message, LIMIT).unwrap_err().to_string()
}

fn header_refused(name: &str, value: &str) -> Option<String> {
    check(&message(&[(name, value)]), LIMIT).err().map(|error| error.to_string())
}

#[test]
fn a_plain_message_passes_and_its_headers_come_out_in_name_order() {
    let headers = check(&message(&[("trace", "t"), ("a", "1")]), LIMIT).unwrap();
    assert_eq!(headers, [("a", "1"), ("trace", "t")].map(|(name, value)| (name.to_owned(), value.to_owned())));
}

// C18
#[test]
fn an_aggregate_id_is_a_group_id_or_refused_and_never_mangled() {
    let mut longest = message(&[]);
    longest.aggregate_id = "a".repeat(128);
    assert!(check(&longest, LIMIT).is_ok());
    let refused = |id: &str| refused(|m| m.aggregate_id = id.into());
    assert_eq!(refused(&"a".repeat(129)), "aggregate_id has 129 characters: SQS takes a message group id of 1 to 128");
    assert_eq!(refused(&"a".repeat(400)), "aggregate_id has 400 characters: SQS takes a message group id of 1 to 128");
    assert!(refused("order 7").starts_with("aggregate_id holds ' '"));
    assert!(refused("order-🎁").starts_with("aggregate_id holds '🎁'"));
    assert_eq!(refused(""), "aggregate_id is empty: give it a name");
}

#[test]
fn a_body_holds_the_characters_of_xml_and_no_other() {
    for good in ["\t\n\r \u{7f}", "\u{D7FF}", "\u{E000}\u{FFFD}", "\u{10000}\u{10FFFF}"] {
        let mut message = message(&[]);
        message.payload = good.into();
        assert!(check(&message, LIMIT).is_ok(), "{good:?}");
    }
    for bad in ['\u{0}', '\u{8}', '\u{B}', '\u{C}', '\u{E}', '\u{1F}', '\u{FFFE}', '\u{FFFF}'] {
        let reason = refused(|m| m.payload = format!("\"é{bad}\""));
        assert_eq!(reason, format!("payload holds {bad:?} at byte 3: SQS takes no such character"));
    }
    assert_eq!(refused(|m| m.payload.clear()), "payload is empty: SQS takes a body of at least 1 character");
}

#[test]
fn seven_headers_are_the_most_beside_the_outboxs_own_attributes() {
    let names: Vec<_> = (0..8).map(|n| format!("h{n}")).collect();
    let headers: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
    assert_eq!(check(&message(&headers[..7]), LIMIT).unwrap().len(), 7);
    let reason = check(&message(&headers), LIMIT).unwrap_err().to_string();
    assert_eq!(reason, "8 headers: SQS takes 10 attributes, and 3 are the outbox's own");
}

#[test]
fn a_header_name_that_sqs_would_refuse_is_refused() {
    for good in ["traceparent", "A-z_0.9", "aws", "awsome", "AmazonX", &"n".repeat(256)] {
        assert_eq!(header_refused(good, "v"), None, "{good}");
    }
    for (bad, problem) in [
        ("", "does not have 1 to 256 characters"),
        (&*"n".repeat(257), "does not have 1 to 256 characters"),
        ("trace parent", "holds another character"),
        ("größe", "holds another character"),
        ("AWS.Trace", "begins with a name that AWS reserves"),
        ("aws.trace", "begins with a name that AWS reserves"),
        ("Amazon.x", "begins with a name that AWS reserves"),
        (".a", "begins or ends with a dot"),
        ("a.", "begins or ends with a dot"),
        ("a..b", "begins or ends with a dot"),
        ("outbox-id", "is an attribute of the outbox's own"),
        ("event-type", "is an attribute of the outbox's own"),
        ("aggregate-type", "is an attribute of the outbox's own"),
    ] {
        let reason = header_refused(bad, "v").unwrap_or_default();
        assert!(reason.contains(problem), "{bad}: {reason}");
        assert!(reason.len() < 200, "{reason}");
    }
}

#[test]
fn an_attribute_value_is_neither_empty_nor_of_other_characters() {
    assert!(header_refused("trace", "").unwrap().starts_with("attribute \"trace\" is empty"));
    assert!(header_refused("trace", "a\u{1}").unwrap().starts_with("attribute \"trace\" holds '\\u{1}'"));
    assert!(refused(|m| m.event_type.clear()).starts_with("attribute \"event-type\" is empty"));
    assert!(refused(|m| m.aggregate_type = "\u{FFFF}".into()).starts_with("attribute \"aggregate-type\" holds"));
    assert_eq!(refused(|m| m.headers_json = "[]".into()), "headers are not a JSON object");
}

// C14
#[test]
fn a_message_may_be_as_large_as_the_queue_takes_and_not_a_byte_larger() {
    let mut message = message(&[("trace", "é")]);
    let rest = size(&message) - message.payload.len();
    message.payload = "1".repeat(LIMIT - rest);
    assert!(check(&message, LIMIT).is_ok());
    message.payload.push('1');
    let reason = check(&message, LIMIT).unwrap_err().to_string();
    assert_eq!(reason, "1048577 bytes with attributes: the queue takes 1048576");
}

#[test]
fn a_size_counts_bytes_of_body_names_types_and_values() {
    let mut message = message(&[("é", "ü\"")]);
    message.payload = "\"ö\"".into();
    let ours = "outbox-idNumber7event-typeStringOrderPlacedaggregate-typeStringorder".len();
    assert_eq!(size(&message), 4 + ours + 2 + 6 + 3);
    for (id, digits) in [(0, 1), (9, 1), (10, 2), (i64::MAX, 19), (i64::MIN, 20)] {
        assert_eq!(decimals(id), digits);
    }
}

#[test]
fn a_source_name_leaves_room_for_every_row_id() {
    let longest = "s".repeat(MAX_SOURCE_BYTES);
    assert!(is_source("a") && is_source(&longest));
    assert_eq!(format!("{longest}-{}", i64::MIN).len(), 128);
    for bad in ["", "a b", "ä", "a\n", &format!("{longest}s")] {
        assert!(!is_source(bad), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn the_size_of_headers_is_that_of_what_is_sent(
        headers in prop::collection::btree_map(".{0,20}", ".{0,40}", 0..8),
        number in any::<i64>(),
    ) {
        let mut json = serde_json::json!(headers);
        json["a number"] = number.into();
        let mut message = message(&[]);
        message.headers_json = json.to_string();
        let sent = message.headers().unwrap();
        let expected: usize = sent.iter().map(|(name, value)| name.len() + "String".len() + value.len()).sum();
        prop_assert_eq!(headers_size(&message.headers_json), expected);
    }
}
