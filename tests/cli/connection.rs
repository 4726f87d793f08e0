//! The way to the database, and what is refused there. A password is never printed.

use crate::outbox::{Outbox, TempFile, filtered};
use crate::support::queue::Queue;
use crate::support::{Database, Postgres, execute};

/// A port that was free a moment ago: nobody listens.
fn unreachable() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("postgres://outbox:hunter2@{}/outbox", listener.local_addr().unwrap())
}

#[tokio::test]
async fn without_a_database_url_every_subcommand_says_how_to_give_one() {
    let queue = Queue::fifo().await;
    let commands: [&[&str]; 9] = [
        &["migrate"],
        &["run", "--queue-url", queue.url()],
        &["enqueue", "--aggregate-type=a", "--aggregate-id=b", "--event-type=c", "--payload=1"],
        &["status"],
        &["gates"],
        &["show", "1"],
        &["retry", "1"],
        &["skip", "1", "--reason=x"],
        &["purge", "--older-than=1d"],
    ];
    let told = "outbox: DATABASE_URL is not set: set it to postgres://user:password@host:5432/database, or name a \
                file that holds it by --database-url-file\n";
    for command in commands {
        let ran = Outbox::new().with_aws().run(command);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (2, "", told), "{command:?}");
    }
}

#[test]
fn a_database_url_that_cannot_be_used_is_told_without_its_password() {
    let refused = |url: &str| Outbox::new().env("DATABASE_URL", url).run(&["status"]).to_string();
    let told = [
        refused(""),
        refused("hunter2"),
        refused("mysql://outbox:hunter2@host/db"),
        refused("postgres://outbox:hunter2@host:port/db"),
        refused(&unreachable()),
    ]
    .join("\n");
    assert!(!told.contains("hunter2"), "{told}");
    filtered(|| {
        insta::assert_snapshot!(told, @r"
    stderr: outbox: DATABASE_URL is not set: set it to postgres://user:password@host:5432/database, or name a file that holds it by --database-url-file
    exit 2
    stderr: outbox: DATABASE_URL is not a PostgreSQL URL: write it as postgres://user:password@host:5432/database (percent-encode special characters of the password)
    exit 2
    stderr: outbox: DATABASE_URL is not a PostgreSQL URL: write it as postgres://user:password@host:5432/database (percent-encode special characters of the password)
    exit 2
    stderr: outbox: DATABASE_URL is not a PostgreSQL URL: write it as postgres://user:password@host:5432/database (percent-encode special characters of the password)
    exit 2
    stderr: outbox: cannot connect to PostgreSQL at outbox@HOST:PORT/outbox: error communicating with database: Connection refused (os error 111); check DATABASE_URL and that the server runs
    exit 1
    ");
    });
}

#[tokio::test]
async fn a_wrong_password_is_told_and_not_repeated() {
    let database = Database::new().await;
    let url = database.url().replacen(":outbox@", ":hunter2@", 1);
    let ran = Outbox::new().env("DATABASE_URL", &url).run(&["status", "--json"]);
    assert!(!ran.stderr.contains("hunter2"), "{ran}");
    filtered(|| {
        insta::assert_snapshot!(ran, @r#"
    stderr: {"error":"cannot connect to PostgreSQL at outbox@HOST:PORT/DATABASE: password authentication failed for user \"outbox\"; check DATABASE_URL and that the server runs"}
    exit 1
    "#);
    });
}

#[tokio::test]
async fn the_url_can_come_from_a_file_which_goes_before_the_variable() {
    let database = Database::new().await;
    let file = TempFile::new(format!("{}\n", database.url()));
    let by_flag = Outbox::new().env("DATABASE_URL", &unreachable()).run(&["gates", "--database-url-file", file.path()]);
    let by_variable = Outbox::new().env("DATABASE_URL_FILE", file.path()).run(&["gates"]);
    for ran in [by_flag, by_variable] {
        assert_eq!(ran.to_string(), "no gates: no aggregate waits for a person\nexit 0");
    }
    let set_to_nothing = Outbox::on(&database).env("DATABASE_URL_FILE", "").run(&["gates"]);
    assert_eq!(set_to_nothing.code, 0, "{set_to_nothing}");
}

#[test]
fn a_url_file_that_is_missing_or_empty_is_told() {
    let ran = Outbox::new().run(&["status", "--database-url-file", "/nowhere/url"]);
    insta::assert_snapshot!(ran, @r"
    stderr: outbox: cannot read the database URL from /nowhere/url: No such file or directory (os error 2)
    exit 2
    ");
    let file = TempFile::new("\n");
    let ran = Outbox::new().run(&["status", "--database-url-file", file.path()]);
    insta::assert_snapshot!(ran.to_string().replace(file.path(), "FILE"), @r"
    stderr: outbox: FILE is empty: write the database URL into it
    exit 2
    ");
}

#[tokio::test]
async fn an_unmigrated_database_is_refused_until_it_is_migrated() {
    let database = Database::unmigrated(Postgres::Latest).await;
    let queue = Queue::fifo().await;
    let outbox = |args: &[&str]| Outbox::on(&database).with_aws().run(args).to_string();
    insta::assert_snapshot!(
        [
            outbox(&["status"]),
            outbox(&["run", "--queue-url", queue.url()]),
            outbox(&["migrate"]),
            outbox(&["migrate"]),
            outbox(&["migrate", "--json"]),
            outbox(&["gates"]),
        ]
        .join("\n"),
        @r#"
        stderr: outbox: the database has no outbox: run `outbox migrate` first
        exit 1
        stderr: outbox: the database has no outbox: run `outbox migrate` first
        exit 1
        the schema went from version 0 to 3
        exit 0
        the schema is up to date at version 3
        exit 0
        {"from":3,"to":3}
        exit 0
        no gates: no aggregate waits for a person
        exit 0
        "#
    );
}

#[tokio::test]
async fn a_newer_schema_is_refused_even_by_migrate() {
    let database = Database::new().await;
    let newer = "INSERT INTO outbox_migrations (version, description, success, checksum, execution_time)
                 VALUES (99, 'newer', true, '', 0)";
    execute(&database.store().await, newer).await;
    let outbox = |args: &[&str]| Outbox::on(&database).run(args).to_string();
    insta::assert_snapshot!([outbox(&["status"]), outbox(&["migrate"])].join("\n"), @r"
    stderr: outbox: the database has schema version 99, this program knows up to 3: use the newer program
    exit 1
    stderr: outbox: the database has schema version 99, this program knows up to 3: use the newer program, migrations only go forward
    exit 1
    ");
}
