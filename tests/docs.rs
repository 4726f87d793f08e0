//! The documents name tests, files and flags; what they name is there.

use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Every text in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn rust_sources(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}

const DOCUMENTS: [&str; 5] =
    ["README.md", "docs/guarantees.md", "docs/operations.md", "docs/architecture.md", "docs/testing.md"];

#[test]
fn every_test_that_a_document_names_exists() {
    let mut sources = String::new();
    for folder in ["src", "tests"] {
        rust_sources(Path::new(folder), &mut sources);
    }
    let mut named = 0;
    for document in DOCUMENTS {
        let text = read(document);
        // a test's name is a sentence; what begins with outbox_ is a constraint or a metric
        for name in quoted(&text).filter(|name| {
            name.matches('_').count() >= 4
                && !name.starts_with("outbox_")
                && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        }) {
            let (function, field) = (format!("fn {name}("), format!("pub {name}:"));
            assert!(sources.contains(&function) || sources.contains(&field), "{document}: `{name}`");
            named += 1;
        }
    }
    assert!(named > 50, "{named} tests are named");
}

#[test]
fn every_file_that_a_document_names_exists() {
    for document in DOCUMENTS {
        let text = read(document);
        for name in quoted(&text) {
            let of_ours = ["src/", "tests/", "docs/", "migrations/", "localstack/", "examples/", "benches/", ".ci/"];
            if of_ours.iter().any(|folder| name.starts_with(folder)) && !name.contains(['*', '<', ' ', '{']) {
                // localstack/env is written by localstack/up
                assert!(name == "localstack/env" || Path::new(name).exists(), "{document}: `{name}`");
            }
        }
    }
}

#[test]
fn the_configuration_table_names_every_flag_of_run_and_no_other() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_outbox")).args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let flags = |text: &str| -> BTreeSet<String> {
        text.split(|c: char| !(c.is_ascii_lowercase() || c == '-'))
            .filter(|word| word.starts_with("--") && word.len() > 2)
            .map(str::to_owned)
            .collect()
    };
    let of_help: BTreeSet<_> =
        help.lines().filter(|line| line.trim_start().starts_with('-')).filter_map(flags_of_line).collect();
    let readme = read("README.md");
    let table = readme.split("## Configuration").nth(1).unwrap().split("## Promises").next().unwrap();
    let of_table: BTreeSet<_> = table
        .lines()
        .filter(|line| line.starts_with("| `--"))
        .flat_map(|line| flags(line.split('|').nth(1).unwrap()))
        .collect();
    let without = |set: &BTreeSet<String>| set.iter().filter(|f| *f != "--help").cloned().collect::<Vec<_>>();
    assert_eq!(without(&of_table), without(&of_help));
}

/// The flag that a line of help explains.
fn flags_of_line(line: &str) -> Option<String> {
    line.split_whitespace().find(|word| word.starts_with("--")).map(|word| word.trim_matches(',').to_owned())
}
