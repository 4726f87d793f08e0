//! Progress bars on a terminal, plain lines elsewhere. Both on stderr: stdout has the result and nothing else.

use std::io::IsTerminal as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::board::Board;
use crate::producers::LIFECYCLE;

const REDRAW: Duration = Duration::from_millis(100);
const NEXT_LINE: Duration = Duration::from_secs(3);

pub(crate) struct Screen(Option<Bars>);

struct Bars {
    all: MultiProgress,
    committed: ProgressBar,
    orders: ProgressBar,
    ledger: ProgressBar,
    states: ProgressBar,
}

impl Screen {
    pub(crate) fn new(orders: u64) -> Self {
        Self(std::io::stderr().is_terminal().then(|| Bars::new(orders)))
    }

    pub(crate) fn say(&self, text: &str) {
        match &self.0 {
            // A terminal that is gone is no reason to fail.
            Some(bars) => drop(bars.all.println(text)),
            None => eprintln!("{text}"),
        }
    }

    pub(crate) async fn follow(&self, board: &Board) {
        let mut tick = tokio::time::interval(if self.0.is_some() { REDRAW } else { NEXT_LINE });
        // The first tick is immediate, and there is nothing to tell yet.
        tick.tick().await;
        loop {
            tick.tick().await;
            match &self.0 {
                Some(bars) => bars.draw(board),
                None => board.say(&board.line()),
            }
        }
    }

    pub(crate) fn close(&self) {
        if let Some(bars) = &self.0 {
            for bar in [&bars.committed, &bars.orders, &bars.ledger, &bars.states] {
                bar.finish_and_clear();
            }
        }
    }
}

impl Bars {
    fn new(orders: u64) -> Self {
        let all = MultiProgress::new();
        let bar = |name: &'static str, length| {
            let bar = all.add(ProgressBar::new(length).with_prefix(name));
            bar.set_style(style("{prefix:>17} {bar:40.green/dim} {human_pos:>6}/{human_len}  {elapsed_precise}"));
            bar
        };
        let steps = LIFECYCLE.len() as u64;
        let committed = bar("committed", orders * (steps + 1));
        let delivered = bar("orders delivered", orders * steps);
        let ledger = bar("ledger delivered", orders);
        let states = all.add(ProgressBar::new(0));
        states.set_style(style("{wide_msg:.dim}"));
        Self { all, committed, orders: delivered, ledger, states }
    }

    fn draw(&self, board: &Board) {
        let delivered = board.delivered();
        self.committed.set_position(board.committed.load(Ordering::Relaxed));
        self.orders.set_position(delivered.orders);
        self.ledger.set_position(delivered.ledger);
        self.states.set_message(board.states());
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is a constant")
}
