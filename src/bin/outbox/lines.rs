//! JSON lines, read a chunk at a time: memory stays bounded whatever comes.

use std::collections::BTreeMap;
use std::io::{BufRead, Read as _};

use ordered_outbox::NewMessage;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Longest line. SQS takes 1 MiB; JSON may spell it with blanks and escapes that PostgreSQL takes out.
pub(crate) const MAX_LINE_BYTES: u64 = 8 << 20;

/// A chunk ends after the line that fills it.
const CHUNK_BYTES: usize = 16 << 20;

/// One line. The payload stays the text it is: no digit of a number may change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    payload: Box<RawValue>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// A line that cannot be taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineError {
    /// Its number, from 1.
    pub(crate) line: u64,
    /// What is wrong with it.
    pub(crate) reason: String,
}

/// Messages of lines that follow each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// The messages, in order.
    pub(crate) messages: Vec<NewMessage>,
    /// The line of each.
    lines: Vec<u64>,
    /// The last line read.
    pub(crate) last_line: u64,
}

impl Chunk {
    /// The line of a message.
    pub(crate) fn line_of(&self, index: usize) -> u64 {
        self.lines.get(index).copied().unwrap_or(self.last_line)
    }

    /// `7 to 9`.
    pub(crate) fn range(&self) -> String {
        format!("{} to {}", self.line_of(0), self.last_line)
    }
}

/// Reads messages, one a line. Blank lines count and mean nothing.
pub(crate) struct Lines<R> {
    input: R,
    line: u64,
    skip: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Reads from `input`, passing over its first `skip` lines.
    pub(crate) const fn new(input: R, skip: u64) -> Self {
        Self { input, line: 0, skip, buffer: Vec::new() }
    }

    /// Up to `most` messages; `None` at the end.
    pub(crate) fn next_chunk(&mut self, most: usize) -> Result<Option<Chunk>, LineError> {
        let mut chunk = Chunk { messages: Vec::new(), lines: Vec::new(), last_line: 0 };
        let mut bytes = 0;
        while chunk.messages.len() < most && bytes < CHUNK_BYTES && self.read_line()? {
            if self.buffer.trim_ascii().is_empty() {
                continue;
            }
            bytes += self.buffer.len();
            chunk.messages.push(parse(&self.buffer).map_err(|reason| self.refused(reason))?);
            chunk.lines.push(self.line);
        }
        chunk.last_line = self.line;
        Ok((!chunk.messages.is_empty()).then_some(chunk))
    }

    /// Reads the next line into the buffer; `false` at the end.
    fn read_line(&mut self) -> Result<bool, LineError> {
        while self.line < self.skip {
            // never buffered: the line to pass over may be the one that was too long
            if self.input.skip_until(b'\n').map_err(|error| self.unreadable(&error))? == 0 {
                return Ok(false);
            }
            self.line += 1;
        }
        self.buffer.clear();
        let mut bounded = self.input.by_ref().take(MAX_LINE_BYTES + 1);
        let read = bounded.read_until(b'\n', &mut self.buffer).map_err(|error| self.unreadable(&error))?;
        if read == 0 {
            return Ok(false);
        }
        self.line += 1;
        if read as u64 > MAX_LINE_BYTES {
            return Err(self.refused(format!("it is longer than {} MiB: SQS takes 1 MiB", MAX_LINE_BYTES >> 20)));
        }
        Ok(true)
    }

    const fn refused(&self, reason: String) -> LineError {
        LineError { line: self.line, reason }
    }

    fn unreadable(&self, error: &std::io::Error) -> LineError {
        LineError { line: self.line + 1, reason: format!("standard input cannot be read: {error}") }
    }
}

fn parse(bytes: &[u8]) -> Result<NewMessage, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("it is not UTF-8 from byte {} on: convert the input", error.valid_up_to() + 1))?;
    let text = text.trim_ascii();
    if text.starts_with('[') {
        // serde would take an array for the fields in their order
        return Err("it is a JSON array: write one JSON object a line".to_owned());
    }
    let line: Line = serde_json::from_str(text).map_err(|error| explained(&error))?;
    let message = NewMessage {
        aggregate_type: line.aggregate_type,
        aggregate_id: line.aggregate_id,
        event_type: line.event_type,
        payload: String::from(Box::<str>::from(line.payload)),
        headers: line.headers,
    };
    message.validate().map_err(|error| error.to_string())?;
    Ok(message)
}

/// For `serde_json` every line is line 1.
fn explained(error: &serde_json::Error) -> String {
    let text = error.to_string().replace(&format!(" at line {} column", error.line()), " at column");
    if error.is_data() { text } else { format!("it is not JSON ({text}): write one JSON object a line") }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};

    use super::*;

    const GOOD: &str = r#"{"aggregate_type":"order","aggregate_id":"order-1","event_type":"e","payload":{"a" : 1.10}}"#;

    fn reader(text: &str, skip: u64) -> Lines<Cursor<Vec<u8>>> {
        Lines::new(Cursor::new(text.as_bytes().to_vec()), skip)
    }

    #[test]
    fn chunks_follow_each_other_and_blank_lines_count() {
        let mut lines = reader(&format!("{GOOD}\n\n{GOOD}\r\n{GOOD}"), 0);
        let first = lines.next_chunk(2).unwrap().unwrap();
        assert_eq!((first.messages.len(), first.lines.clone(), first.last_line), (2, vec![1, 3], 3));
        assert_eq!(lines.next_chunk(2).unwrap().unwrap().lines, [4]);
        assert_eq!(lines.next_chunk(2), Ok(None));
    }

    // C33
    #[test]
    fn a_payload_is_taken_as_the_text_it_is() {
        let chunk = reader(GOOD, 0).next_chunk(9).unwrap().unwrap();
        assert_eq!(chunk.messages[0].payload, r#"{"a" : 1.10}"#);
    }

    #[test]
    fn skipped_lines_are_not_even_parsed() {
        let mut lines = reader(&format!("nonsense\n{}\n{GOOD}\n", "x".repeat(MAX_LINE_BYTES as usize + 7)), 2);
        assert_eq!(lines.next_chunk(9).unwrap().unwrap().lines, [3]);
        assert_eq!(reader(GOOD, 5).next_chunk(9), Ok(None));
    }

    #[test]
    fn a_chunk_of_long_lines_ends_early() {
        let line = format!("{}{GOOD}\n", " ".repeat(7 << 20));
        let mut lines = reader(&line.repeat(4), 0);
        assert_eq!(lines.next_chunk(1_000).unwrap().unwrap().lines, [1, 2, 3]);
        assert_eq!(lines.next_chunk(1_000).unwrap().unwrap().lines, [4]);
    }

    #[test]
    fn a_line_of_fifty_megabytes_is_refused_without_being_held() {
        let mut lines = Lines::new(BufReader::new(std::io::repeat(b'x').take(50_000_000)), 0);
        let error = lines.next_chunk(9).unwrap_err();
        assert_eq!(error, LineError { line: 1, reason: "it is longer than 8 MiB: SQS takes 1 MiB".into() });
        assert!(lines.buffer.capacity() < 20_000_000);
    }
}
