//! How the program fails: one sentence on standard error, and an exit code that says whose turn it is.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use ordered_outbox::{ConfigError, StoreError};

use crate::output::{self, Output};

/// Failed or refused.
const FAILED: u8 = 1;
/// The command line or the environment has to change.
const BAD_USAGE: u8 = 2;

/// The command line or the environment cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadUsage(String);

impl BadUsage {
    /// With a sentence that names the remedy.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

/// A start was refused, for every reason there is.
#[derive(Debug, thiserror::Error)]
#[error("{}", problems.join("; "))]
pub(crate) struct Refused {
    /// Each is a sentence that names the remedy.
    pub(crate) problems: Vec<String>,
    /// The command line and the environment are to blame for all of them.
    pub(crate) is_bad_usage: bool,
}

/// Tells an error and gives its exit code.
pub(crate) fn report(error: &anyhow::Error, output: Output) -> ExitCode {
    if let Some(Refused { problems, is_bad_usage }) = error.downcast_ref() {
        for problem in problems {
            tell(problem, output.is_json());
        }
        return ExitCode::from(if *is_bad_usage { BAD_USAGE } else { FAILED });
    }
    tell(&sentence(error), output.is_json());
    let bad_usage = error.is::<BadUsage>()
        || error.is::<ConfigError>()
        || matches!(error.downcast_ref::<StoreError>(), Some(StoreError::Url));
    ExitCode::from(if bad_usage { BAD_USAGE } else { FAILED })
}

/// Tells what `clap` found, or prints the help that was asked for.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match error.print().map_err(output::closed) {
            Ok(()) | Err(None) => ExitCode::SUCCESS,
            Err(Some(_)) => ExitCode::from(FAILED),
        };
    }
    // the command line was not understood, so nobody but the raw arguments can tell how to answer
    let json = std::env::args_os().any(|argument| argument == "--json");
    tell(&usage_sentence(error), json);
    ExitCode::from(BAD_USAGE)
}

fn tell(sentence: &str, json: bool) {
    let sentence = without_password(sentence);
    let line = if json { serde_json::json!({ "error": sentence }).to_string() } else { format!("outbox: {sentence}") };
    // when standard error is closed there is nobody left to tell; the exit code still speaks
    writeln!(io::stderr(), "{line}").ok();
}

/// The error and its causes, as far as they say something new.
pub(crate) fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    output::one_line(&without_source_line(&text))
}

/// A text for people that may hold what nobody should see or a terminal obey.
pub(crate) fn safe(text: &str) -> String {
    output::one_line(&without_password(text))
}

/// PostgreSQL says at which line of its own source code it refused, and the driver repeats that as if it were a line
/// of the reader's.
fn without_source_line(text: &str) -> String {
    let Some((before, said)) = text.split_once("error returned from database: ") else { return text.to_owned() };
    let Some((said, rest)) = said.split_once(" at line ") else { return format!("{before}{said}") };
    format!("{before}{said}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// `clap` writes paragraphs: what is wrong, tips, the usage, where help is. The first two make the sentence.
fn usage_sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let said = text.split("\nUsage:").next().unwrap_or_default().split("\nFor more information").next();
    let words: Vec<_> = said.unwrap_or_default().split_whitespace().collect();
    let said = words.join(" ");
    let said = said.trim_start_matches("error: ").replace(" tip: ", "; ");
    match command_line(error) {
        Some(command) => format!("{said}; see `{command} --help`"),
        // the value of one option is wrong, and what it should be is already said
        None => said,
    }
}

/// The command whose help explains the error: the leading plain words of its usage.
fn command_line(error: &clap::Error) -> Option<String> {
    let usage = error.get(ContextKind::Usage)?.to_string();
    let words = usage.split_whitespace().skip_while(|word| *word != "outbox");
    Some(words.take_while(|word| !word.starts_with(['-', '<', '['])).collect::<Vec<_>>().join(" "))
}

/// The text with `***` for what stands between `://` and `@`. A URL given in the wrong place comes back in an error,
/// and may hold a password.
fn without_password(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://").map(|at| at + "://".len()) {
        let (before, after) = rest.split_at(start);
        let end = after.find(|c: char| c.is_whitespace()).unwrap_or(after.len());
        shown.push_str(before);
        // the last one: a password may hold an @ that should have been escaped
        rest = match after[..end].rfind('@') {
            // what a remedy says is no secret
            Some(at) if &after[..at] != "user:password" => {
                shown.push_str("***");
                &after[at..]
            }
            _ => after,
        };
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn a_cause_that_the_text_already_holds_is_not_repeated() {
        let error = anyhow!("connection refused").context("cannot connect: connection refused; start the server");
        assert_eq!(sentence(&error), "cannot connect: connection refused; start the server");
    }

    #[test]
    fn a_cause_that_says_something_new_is_added() {
        let error = Err::<(), _>(anyhow!("no such file")).context("cannot read x").unwrap_err();
        assert_eq!(sentence(&error), "cannot read x: no such file");
    }

    #[test]
    fn a_text_of_several_lines_becomes_one() {
        assert_eq!(sentence(&anyhow!("one\n  two\u{1b}[31m")), "one two\\u{1b}[31m");
    }

    #[test]
    fn a_line_of_the_servers_source_code_is_left_out() {
        let told = |text: &str| sentence(&anyhow!(text.to_owned()));
        assert_eq!(told("x: error returned from database: no role at line 317; do it"), "x: no role; do it");
        assert_eq!(told("x: error returned from database: no role"), "x: no role");
        assert_eq!(told("bad JSON at line 1 column 5"), "bad JSON at line 1 column 5");
    }

    #[test]
    fn a_password_in_a_url_is_masked() {
        let masked = without_password("'postgres://u:a@b/c@host:5432/db' and https://sqs/1/a.fifo or x://u:p@h");
        assert_eq!(masked, "'postgres://***@host:5432/db' and https://sqs/1/a.fifo or x://***@h");
        assert_eq!(without_password("://"), "://");
        assert_eq!(without_password("x://user:password@host"), "x://user:password@host");
    }
}
