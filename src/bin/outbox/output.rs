//! Standard output: text for people, or one JSON document.

use std::io::{self, ErrorKind, Write as _};

use anyhow::Context as _;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;

/// How a result is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
}

impl Output {
    /// JSON, or text for people.
    pub(crate) const fn new(json: bool) -> Self {
        Self { json }
    }

    /// Whether a machine reads.
    pub(crate) const fn is_json(self) -> bool {
        self.json
    }

    /// Writes the document as JSON, or else the text.
    pub(crate) fn write(self, document: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        let mut result = if self.json { serde_json::to_string(document)? } else { text() };
        result.push('\n');
        let mut stdout = io::stdout().lock();
        match stdout.write_all(result.as_bytes()).and_then(|()| stdout.flush()).map_err(closed) {
            Ok(()) | Err(None) => Ok(()),
            Err(Some(error)) => Err(error).context("write to standard output"),
        }
    }
}

/// `None`: the reader has had enough, as `head` does. The work is done, and that is no failure.
pub(crate) fn closed(error: io::Error) -> Option<io::Error> {
    (error.kind() != ErrorKind::BrokenPipe).then_some(error)
}

/// Columns apart by blanks, one line a row, so that `grep` and `awk` work on it.
pub(crate) fn table<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    plain(&table)
}

/// Names and values below each other.
pub(crate) fn fields(rows: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    plain(&table)
}

fn plain(table: &Table) -> String {
    let lines: Vec<_> = table.lines().map(|line| line.trim_end().trim_start_matches(' ').to_owned()).collect();
    lines.join("\n")
}

/// Text from the database or a library, safe on a terminal: line breaks become blanks, and other control characters
/// (an error text may hold escape sequences) become visible.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for part in text.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        for c in part.chars() {
            if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
        }
    }
    line
}
