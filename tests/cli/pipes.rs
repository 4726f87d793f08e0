//! A reader that has had enough, as `head` does, is no failure.

use std::process::{Command, Stdio};

use crate::support::{Database, rows, seed};

/// Exit code and standard error of a run whose standard output nobody reads.
fn unread(database_url: &str, args: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("outbox"));
    command.env_clear().env("DATABASE_URL", database_url).args(args).stdin(Stdio::null());
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn an_output_that_nobody_reads_ends_quietly_and_the_work_is_done() {
    let database = Database::new().await;
    let store = database.store().await;
    seed(&store, &[("order-1", "a")]).await;
    let message = ["enqueue", "--aggregate-type=a", "--aggregate-id=b", "--event-type=c", "--payload=1"];
    for args in [&["--help"][..], &["status"], &["gates", "--json"], &["show", "1", "--payload"], &message] {
        assert_eq!(unread(database.url(), args), (Some(0), String::new()), "{args:?}");
    }
    assert_eq!(rows(&store).await.len(), 2);
}

#[tokio::test]
async fn a_failure_that_nobody_reads_still_has_its_exit_code() {
    let database = Database::new().await;
    let (code, told) = unread(database.url(), &["show", "7"]);
    assert_eq!((code, told.lines().count()), (Some(1), 1), "{told}");
}
