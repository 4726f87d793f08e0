//! `--help`: units, defaults and exit codes, as people read them.

use crate::outbox::Outbox;

#[test]
fn the_help_of_every_subcommand_is_as_recorded() {
    for command in ["", "migrate", "check", "run", "enqueue", "status", "gates", "show", "retry", "skip", "purge"] {
        let mut args: Vec<_> = command.split_whitespace().collect();
        args.push("--help");
        let ran = Outbox::new().run(&args);
        let name = format!("help_{}", if command.is_empty() { "outbox" } else { command });
        insta::assert_snapshot!(name, ran.to_string());
    }
}

#[test]
fn the_values_of_the_environment_are_not_shown() {
    let ran = Outbox::new().env("OUTBOX_OWNER", "hunter2").env("DATABASE_URL_FILE", "hunter2").run(&["run", "--help"]);
    assert!(!ran.stdout.contains("hunter2"), "{ran}");
}

#[test]
fn the_version_is_the_packages() {
    let ran = Outbox::new().run(&["--version"]);
    assert_eq!(ran.to_string(), format!("outbox {}\nexit 0", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_command_line_that_is_not_understood_is_bad_usage() {
    let refused = |args: &[&str]| Outbox::new().run(args).to_string();
    insta::assert_snapshot!(
        [refused(&[]), refused(&["stauts"]), refused(&["status", "--jsno"]), refused(&["skip", "7", "--json"])].join("\n"),
        @r#"
        stderr: outbox: 'outbox' requires a subcommand but one was not provided [subcommands: migrate, check, run, enqueue, status, gates, show, retry, skip, purge, help]; see `outbox --help`
        exit 2
        stderr: outbox: unrecognized subcommand 'stauts'; a similar subcommand exists: 'status'; see `outbox --help`
        exit 2
        stderr: outbox: unexpected argument '--jsno' found; a similar argument exists: '--json'; see `outbox status --help`
        exit 2
        stderr: {"error":"the following required arguments were not provided: --reason <TEXT>; see `outbox skip --help`"}
        exit 2
        "#
    );
}

#[test]
fn a_password_given_where_it_does_not_belong_is_not_repeated() {
    for args in [
        ["status", "postgres://outbox:hunter2@host/db"],
        ["run", "--queue-url=postgres://outbox:hunter2@host/db"],
        ["status", "--database-url-file=postgres://outbox:hunter2@host/db"],
    ] {
        let ran = Outbox::new().run(&args);
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.stderr.contains("host/db") && !ran.stderr.contains("hunter2"), "{ran}");
    }
}
