//! Arrows point one way: bin -> dispatcher -> store, publisher -> vocabulary.

use std::path::{Path, PathBuf};

fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.clone(), std::fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

/// Lines of code that hold `word`, in files whose path begins with none of `except`.
fn offenders(word: &str, except: &[&str]) -> Vec<String> {
    sources(Path::new("src"))
        .into_iter()
        .filter(|(path, _)| !except.iter().any(|allowed| path.starts_with(allowed)))
        .flat_map(|(path, text)| {
            text.lines()
                .enumerate()
                .filter(|(_, line)| !line.trim_start().starts_with("//") && line.contains(word))
                .map(|(number, line)| format!("{}:{}: {}", path.display(), number + 1, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn sql_is_spoken_only_by_the_store_the_producer_api_and_the_migrations() {
    let allowed = ["src/store.rs", "src/store", "src/enqueue.rs", "src/migrate.rs"];
    assert_eq!(offenders("sqlx::", &allowed), [""; 0]);
}

#[test]
fn aws_is_named_only_by_the_sqs_publisher() {
    let allowed = ["src/publisher/sqs.rs", "src/publisher/sqs"];
    assert_eq!(offenders("aws_sdk_sqs::", &allowed), [""; 0]);
    assert_eq!(offenders("aws_config::", &allowed), [""; 0]);
}

#[test]
fn anyhow_stays_in_the_program() {
    assert_eq!(offenders("anyhow", &["src/bin"]), [""; 0]);
}

#[test]
fn the_store_and_the_publishers_know_nothing_of_the_dispatcher_nor_of_each_other() {
    let others = ["src/lib.rs", "src/dispatcher.rs", "src/dispatcher", "src/bin"];
    assert_eq!(offenders("crate::dispatcher", &others), [""; 0]);
    let mut not_publisher = others.to_vec();
    not_publisher.extend(["src/store.rs", "src/store"]);
    assert_eq!(offenders("crate::store", &not_publisher), [""; 0]);
    let mut not_store = others.to_vec();
    not_store.extend(["src/publisher.rs", "src/publisher"]);
    assert_eq!(offenders("crate::publisher", &not_store), [""; 0]);
}

#[test]
fn the_program_uses_the_library_as_everybody_else_does() {
    for (path, text) in sources(Path::new("src/bin")) {
        assert!(!text.contains("#[path"), "{}", path.display());
    }
}
