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

const DOCUMENTS: [&str; 6] = [
    "README.md",
    "docs/guarantees.md",
    "docs/operations.md",
    "docs/architecture.md",
    "docs/testing.md",
    "docs/failures.md",
];

/// Every text in double quotes between two texts.
fn strings_between<'a>(text: &'a str, from: &str, to: &str) -> Vec<&'a str> {
    let (_, rest) = text.split_once(from).unwrap();
    let (part, _) = rest.split_once(to).unwrap();
    part.split('"').skip(1).step_by(2).collect()
}

#[test]
fn every_error_code_and_every_trouble_of_a_destination_is_told_of_in_failures() {
    let failures = read("docs/failures.md");
    let classify = read("src/publisher/classify.rs");
    let codes = strings_between(&classify, "    Some(match code {", "\n/// Whose fault the refusal of one entry");
    assert!(codes.len() > 60, "{}", codes.len());
    for code in codes {
        assert!(quoted(&failures).any(|name| name.trim_end_matches('*') == code), "{code}");
    }
    let outcome = read("src/outcome.rs");
    let troubles = strings_between(&outcome, "pub const fn as_str(self)", "\n}\n");
    assert_eq!(troubles.len(), 10);
    for trouble in troubles {
        assert!(failures.contains(&format!("\n| `{trouble}` |")), "{trouble}");
    }
}

#[test]
fn every_line_that_a_breaker_logs_is_told_of_in_operations() {
    let operations = read("docs/operations.md");
    let breakers = read("src/dispatcher/breakers.rs");
    let lines: Vec<_> = breakers.split('"').filter(|text| text.starts_with("destination ")).collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        let begins = line.split(':').next().unwrap();
        assert!(operations.contains(&format!("| `{begins}")), "{line}");
    }
}

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
