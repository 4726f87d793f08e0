//! What can never be sent is refused where it is written, and what can be is not: beside PostgreSQL, whose text of a
//! payload is what will be sent.

mod support;

use ordered_outbox::NewMessage;
use ordered_outbox::enqueue::InvalidMessage;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sqlx::PgPool;
use support::Database;

const MAX_BYTES: usize = 1 << 20;

fn with_payload(payload: impl Into<String>) -> Result<(), InvalidMessage> {
    NewMessage::from_json("order", "order-1", "OrderPlaced", payload).validate()
}

/// JSON as producers write it: with white space, escapes, equal keys, and numbers in every notation.
fn json() -> impl Strategy<Value = String> {
    let text = "[a-z\"\\\\\u{8}\t\n\u{1f}\u{7f}é🎁/]{0,12}".prop_map(|text| {
        let text = serde_json::json!(text).to_string();
        if text.len() % 2 == 0 { text.replace('é', "\\u00e9").replace('/', "\\/") } else { text }
    });
    let key = "[ab]{0,2}".prop_map(|key| format!("\"{key}\""));
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        prop_oneof![
            Just("1e2"),
            Just("1.0"),
            Just("-0"),
            Just("0.000001"),
            Just("1E+30"),
            Just("12345678901234567890123")
        ]
        .prop_map(str::to_owned),
        text,
    ];
    let spaces = "[ \n]{0,3}";
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            (proptest::collection::vec(inner.clone(), 0..6), spaces)
                .prop_map(|(items, space)| format!("[{space}{}]", items.join(&format!(",{space}")))),
            (proptest::collection::vec((key.clone(), inner), 0..6), spaces).prop_map(|(members, space)| {
                let members: Vec<_> = members.iter().map(|(key, value)| format!("{key}{space}:{value}")).collect();
                format!("{{{}{space}}}", members.join(","))
            }),
        ]
    })
}

/// Bytes of the text that PostgreSQL makes of it.
async fn stored_bytes(pool: &PgPool, json: &str) -> usize {
    let bytes: i32 =
        sqlx::query_scalar("SELECT octet_length($1::jsonb::text)").bind(json).fetch_one(pool).await.unwrap();
    usize::try_from(bytes).unwrap()
}

// C13
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_is_too_large_only_if_its_text_in_the_database_is_and_without_numbers_always_then() {
    let database = Database::new().await;
    let store = database.store().await;
    let pool = store.pool();
    let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        runner.run(&(json(), any::<bool>()), |(json, just_fits)| {
            let padded = |padding: usize| format!("[{json}, \"{}\"]", "x".repeat(padding));
            let bare = runtime.block_on(stored_bytes(pool, &padded(0)));
            let padding = MAX_BYTES - bare + usize::from(!just_fits);
            let payload = padded(padding);
            prop_assert_eq!(runtime.block_on(stored_bytes(pool, &payload)), MAX_BYTES + usize::from(!just_fits));
            let is_taken = with_payload(payload);
            if just_fits {
                prop_assert_eq!(is_taken, Ok(()));
            } else if !json.contains(|c: char| c.is_ascii_digit()) {
                prop_assert_eq!(is_taken, Err(InvalidMessage::TooLarge { size: MAX_BYTES + 1 }));
            }
            Ok(())
        })
    })
    .unwrap();
}

// C15
#[tokio::test]
async fn a_payload_is_refused_for_a_character_only_if_the_database_will_hold_it_as_such() {
    let database = Database::new().await;
    let store = database.store().await;
    for json in [r#""\u0001""#, r#""\u001f\b\f""#, "\"\u{7f}\"", r#""\ud83c\udf81""#, "\"\u{1FFFE}\"", r#""\\uffff""#] {
        assert_eq!(with_payload(json), Ok(()), "{json}");
    }
    for (json, bad) in [(r#""\uFFFE""#, '\u{FFFE}'), (r#"{"\uffff": 1}"#, '\u{FFFF}'), ("\"\u{FFFF}\"", '\u{FFFF}')] {
        assert_eq!(with_payload(json), Err(InvalidMessage::PayloadCharacter(bad)), "{json}");
        let sql = "SELECT $1::jsonb::text";
        let stored: String = sqlx::query_scalar(sql).bind(json).fetch_one(store.pool()).await.unwrap();
        assert!(stored.contains(bad), "{stored}");
    }
}

// C15
#[test]
fn headers_that_sqs_refuses_are_refused_where_they_are_written() {
    let message = || NewMessage::from_json("order", "order-1", "OrderPlaced", "{}");
    let with = |headers: &[(&str, &str)]| {
        headers.iter().fold(message(), |message, (name, value)| message.header(*name, *value)).validate()
    };
    assert_eq!(with(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1"), ("e", "1"), ("f", "1"), ("g", "1")]), Ok(()));
    let eight: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"].into_iter().map(|name| (name, "1")).collect();
    assert_eq!(with(&eight), Err(InvalidMessage::TooManyHeaders(8)));
    assert!(matches!(with(&[("trace parent", "1")]), Err(InvalidMessage::HeaderName { .. })));
    assert!(matches!(with(&[("AWS.trace", "1")]), Err(InvalidMessage::HeaderName { .. })));
    assert!(matches!(with(&[("outbox-id", "1")]), Err(InvalidMessage::HeaderName { .. })));
    assert_eq!(with(&[("trace", "")]), Err(InvalidMessage::EmptyAttribute("trace".into())));
    let bad = InvalidMessage::AttributeCharacter { name: "trace".into(), character: '\u{1}' };
    assert_eq!(with(&[("trace", "\u{1}")]), Err(bad));
    let mut event = message();
    event.event_type = "\u{FFFF}".into();
    let bad = InvalidMessage::AttributeCharacter { name: "event-type".into(), character: '\u{FFFF}' };
    assert_eq!(event.validate(), Err(bad));
}
