//! Progress of long work: on standard error, and only when that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A count of messages that moves.
pub(crate) fn counter(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what);
    // the template is constant; should it be wrong, the default style shows
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} messages {msg}, {per_sec}, {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
