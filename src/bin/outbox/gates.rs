//! `outbox gates`

use clap::Args;
use ordered_outbox::store::Gate;
use ordered_outbox::{MessageId, Store};
use serde::Serialize;

use crate::database::DatabaseArgs;
use crate::output::{self, Output};
use crate::values::age;

/// Longest error text in the table, in characters; `outbox show` prints all of it.
const ERROR_CHARS: usize = 80;

/// Which gates to list.
#[derive(Args, Debug)]
pub(crate) struct GatesArgs {
    /// List the gates after this message id
    #[arg(long, value_name = "ID", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    after: MessageId,
    /// Most gates to list, 1 to 10000
    #[arg(long, value_name = "GATES", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

/// A page of gates.
#[derive(Serialize)]
struct Page {
    gates: Vec<Gate>,
    /// Where the next page begins; `None` on the last one.
    next_after: Option<MessageId>,
}

/// Prints a page of gates.
pub(crate) async fn execute(args: GatesArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let page = read(&database.open().await?, &args).await?;
    output.write(&page, || text(&page, &args))
}

async fn read(store: &Store, args: &GatesArgs) -> anyhow::Result<Page> {
    let wanted = args.limit as usize;
    // one more than asked for tells whether there is a next page
    let mut gates = store.gates(args.after, args.limit + 1).await?;
    let more = gates.len() > wanted;
    gates.truncate(wanted);
    let next_after = gates.last().map(|gate| gate.id).filter(|_| more);
    Ok(Page { gates, next_after })
}

fn text(page: &Page, args: &GatesArgs) -> String {
    if page.gates.is_empty() {
        return match args.after {
            0 => "no gates: no aggregate waits for a person".to_owned(),
            after => format!("no gates after message {after}"),
        };
    }
    let rows = page.gates.iter().map(|gate| {
        [
            gate.id.to_string(),
            output::one_line(&gate.aggregate_id),
            output::one_line(&gate.aggregate_type),
            output::one_line(&gate.event_type),
            gate.attempts.to_string(),
            age(gate.age_seconds),
            gate.waiting.to_string(),
            shortened(gate.last_error.as_deref().unwrap_or_default()),
        ]
    });
    let table = output::table(["id", "aggregate", "type", "event", "attempts", "age", "waiting", "error"], rows);
    let next = match page.next_after {
        Some(after) => format!("more: outbox gates --after {after} --limit {}", args.limit),
        None => "answer one with `outbox retry ID` or `outbox skip ID --reason TEXT`".to_owned(),
    };
    format!("{table}\n\n{next}")
}

fn shortened(error: &str) -> String {
    let mut text: String = output::one_line(error);
    if let Some((end, _)) = text.char_indices().nth(ERROR_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}
