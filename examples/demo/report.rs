//! The result: a short table and one last line, or one JSON object.

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::board::Board;
use crate::count::Count;
use crate::dispatchers::{End, Kill};
use crate::gate::Story;
use crate::producers::{LIFECYCLE, POISON_SEQ};

#[derive(Serialize)]
pub(crate) struct Report {
    orders: u64,
    #[serde(flatten)]
    count: Count,
    rolled_back: u64,
    /// Messages of earlier demos that were still in the queues.
    foreign: u64,
    seconds: f64,
    /// From a producer's enqueue to the receipt, whatever waited in between.
    latency_p50_ms: u128,
    latency_p99_ms: u128,
    kill: Kill,
    gate: Story,
    dispatchers: Vec<End>,
    /// Empty if the demo shows what it promises.
    pub(crate) problems: Vec<String>,
}

impl Report {
    pub(crate) fn new(board: &Board, count: Count, kill: Kill, gate: Story, dispatchers: Vec<End>) -> Self {
        let mut report = Self {
            orders: board.orders,
            count,
            rolled_back: board.rolled_back.load(Ordering::Relaxed),
            foreign: board.foreign.load(Ordering::Relaxed),
            seconds: board.elapsed().as_secs_f64(),
            latency_p50_ms: board.latency(0.5).as_millis(),
            latency_p99_ms: board.latency(0.99).as_millis(),
            kill,
            gate,
            dispatchers,
            problems: Vec::new(),
        };
        report.problems = report.find_problems(board);
        report
    }

    fn find_problems(&self, board: &Board) -> Vec<String> {
        let Self { count, gate, kill, .. } = self;
        let told = board.committed.load(Ordering::Relaxed);
        let mut problems = count.problems();
        let mut require = |holds: bool, problem: String| {
            if !holds {
                problems.push(problem);
            }
        };
        require(
            count.committed == board.expected() && told == board.expected(),
            format!(
                "{} rows are committed and the producers tell of {told}, not {}",
                count.committed,
                board.expected()
            ),
        );
        require(
            count.delivered + count.skipped + count.lost == count.committed,
            "delivered, skipped and lost do not add up to committed".to_owned(),
        );
        require(count.skipped == 1, format!("{} messages were skipped, not 1", count.skipped));
        require(
            count.missing == [(gate.aggregate_id.clone(), POISON_SEQ)],
            format!("events are missing among the delivered, other than the skipped one: {:?}", count.missing),
        );
        require(
            gate.reached_seq == POISON_SEQ - 1,
            format!("{} had reached event {} while it was gated", gate.aggregate_id, gate.reached_seq),
        );
        require(
            board.tracker().seq(&gate.aggregate_id) == LIFECYCLE.len() as i64,
            format!("{} did not move on after the skip", gate.aggregate_id),
        );
        require(kill.leases_left > 0, format!("{} held no lease when it was killed", kill.name));
        for end in self.dispatchers.iter().filter(|end| !end.ok) {
            require(false, format!("{} ended with {}", end.name, end.status));
        }
        problems
    }

    /// Prints the result. Success only if there is no problem.
    pub(crate) fn publish(&self, json: bool) -> ExitCode {
        if !json {
            println!("{}", self.table());
        }
        for problem in &self.problems {
            eprintln!("demo: {problem}");
        }
        if json {
            println!("{}", serde_json::to_string(self).expect("a report is plain data"));
        } else {
            println!("{}", self.line());
        }
        if self.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn line(&self) -> String {
        let Count { committed, delivered, skipped, lost, out_of_order, duplicates, .. } = self.count;
        format!(
            "demo: {committed} committed, {delivered} delivered, {skipped} skipped, {lost} lost, \
             {out_of_order} out of order, {duplicates} duplicates, {:.1} s",
            self.seconds
        )
    }

    fn table(&self) -> Table {
        let Self { count, kill, gate, .. } = self;
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let mut row = |name: &str, value: String| {
            table.add_row([name.to_owned(), value]);
        };
        row("committed", format!("{}, after {} more were rolled back", count.committed, self.rolled_back));
        row("delivered", count.delivered.to_string());
        row("skipped", count.skipped.to_string());
        row("lost", count.lost.to_string());
        row("out of order", count.out_of_order.to_string());
        row("duplicates", count.duplicates.to_string());
        row("latency", format!("p50 {} ms, p99 {} ms", self.latency_p50_ms, self.latency_p99_ms));
        row(
            "kill",
            format!(
                "{} by SIGKILL at {:.1} s, after {} deliveries, leaving {} leases",
                kill.name, kill.seconds, kill.delivered_before, kill.leases_left
            ),
        );
        row(
            "gate",
            format!(
                "message {} of {}: seen at {:.1} s, skipped at {:.1} s, {} others delivered meanwhile",
                gate.id, gate.aggregate_id, gate.seen_seconds, gate.skipped_seconds, gate.others_meanwhile
            ),
        );
        for end in &self.dispatchers {
            row(&end.name, end.status.clone());
        }
        if self.foreign > 0 {
            row("leftovers", format!("{} messages of earlier demos, dropped", self.foreign));
        }
        table
    }
}
