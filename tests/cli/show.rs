//! `outbox show`

use ordered_outbox::{NewMessage, enqueue};

use crate::outbox::{Outbox, die, filtered, publish_heads};
use crate::support::{Database, seed};

#[tokio::test]
async fn a_waiting_message_is_shown_with_the_head_it_waits_behind() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "a"), ("order-1", "b")]).await;
    die(&store, "illegal character").await;
    let show = |id| Outbox::on(&database).run(&["show", id]).to_string();
    filtered(|| {
        insta::assert_snapshot!([show("1"), show("2")].join("\n"), @r"
    id             1
    aggregate      order-1
    type           order
    event          a
    status         dead
    attempts       1
    created at     TIME
    available at   TIME
    waits behind   nothing
    lease version  1
    last error     illegal character
    exit 0
    id             2
    aggregate      order-1
    type           order
    event          b
    status         pending
    attempts       0
    created at     TIME
    available at   TIME
    waits behind   message 1 (dead, available at TIME)
    lease version  0
    exit 0
    ");
    });
}

#[tokio::test]
async fn a_published_message_is_shown_with_what_the_broker_said() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "a")]).await;
    publish_heads(&store).await;
    filtered(|| {
        insta::assert_snapshot!(Outbox::on(&database).run(&["show", "1"]), @r"
    id                 1
    aggregate          order-1
    type               order
    event              a
    status             done
    attempts           1
    created at         TIME
    available at       TIME
    waits behind       nothing
    lease version      1
    done at            TIME
    broker message id  m-1
    broker sequence    42
    exit 0
    ");
    });
}

// C33
#[tokio::test]
async fn payload_and_headers_are_shown_only_when_asked_for_and_with_every_digit() {
    let database = Database::new().await;
    let store = database.store().await;
    let payload = r#"{"name": "Ada", "n": 9007199254740993, "d": 0.123456789012345678901234567890}"#;
    let message = NewMessage::from_json("order", "order-1", "OrderPlaced", payload).header("trace", "00-abc");
    let mut tx = store.pool().begin().await.unwrap();
    enqueue(&mut tx, &message).await.unwrap();
    tx.commit().await.unwrap();

    for args in [&["show", "1"][..], &["show", "1", "--json"]] {
        let ran = Outbox::on(&database).run(args);
        assert!(!ran.stdout.contains("Ada") && !ran.stdout.contains("00-abc"), "{ran}");
    }
    let show = |args: &[&str]| Outbox::on(&database).run(args).to_string();
    filtered(|| {
        insta::assert_snapshot!(
            [show(&["show", "1", "--payload"]), show(&["show", "1", "--payload", "--json"])].join("\n"),
            @r#"
            id             1
            aggregate      order-1
            type           order
            event          OrderPlaced
            status         pending
            attempts       0
            created at     TIME
            available at   TIME
            waits behind   nothing
            lease version  0
            headers        {"trace": "00-abc"}
            payload        {"d": 0.123456789012345678901234567890, "n": 9007199254740993, "name": "Ada"}
            exit 0
            {"id":1,"aggregate_type":"order","aggregate_id":"order-1","event_type":"OrderPlaced","status":"pending","attempts":0,"created_at":"TIME","available_at":"TIME","lease_owner":null,"lease_until":null,"lease_version":0,"last_error":null,"done_at":null,"skip_reason":null,"broker_message_id":null,"broker_sequence":null,"waits_behind":null,"headers":{"trace": "00-abc"},"payload":{"d": 0.123456789012345678901234567890, "n": 9007199254740993, "name": "Ada"}}
            exit 0
            "#
        );
    });
}

#[tokio::test]
async fn a_message_that_is_not_there_is_told() {
    let database = Database::new().await;
    insta::assert_snapshot!(Outbox::on(&database).run(&["show", "7"]), @r"
    stderr: outbox: there is no message 7: it never existed, or it was purged
    exit 1
    ");
    assert_eq!(
        Outbox::on(&database).run(&["show", "7", "--json"]).json_error(),
        "there is no message 7: it never existed, or it was purged"
    );
}

#[test]
fn an_id_that_is_no_id_is_bad_usage() {
    for id in ["abc", "0", "-1", "1.5", "", "9223372036854775808"] {
        for command in ["show", "retry"] {
            let ran = Outbox::new().run(&[command, id]);
            assert_eq!(ran.code, 2, "{ran}");
            assert_eq!(
                ran.stderr,
                format!(
                    "outbox: invalid value '{id}' for '<ID>': a message id is a whole number from 1, as `outbox \
                     gates` prints it\n"
                )
            );
        }
    }
}
