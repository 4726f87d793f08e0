//! Says what a bench is doing while nothing is to be seen: a spinner on a terminal, otherwise lines.

use std::io::{IsTerminal as _, stderr};
use std::time::Duration;

use indicatif::ProgressBar;

/// Under way until it is dropped.
pub struct Step(Option<ProgressBar>);

pub fn step(what: &str) -> Step {
    if !stderr().is_terminal() {
        eprintln!("{what}");
        return Step(None);
    }
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    Step(Some(bar))
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
