//! `outbox check`

use std::collections::BTreeSet;

use clap::Args;
use ordered_outbox::State;
use serde_json::json;

use crate::database::DatabaseArgs;
use crate::dispatch::{Checked, DispatchArgs};
use crate::failure;
use crate::output::{self, Output};

/// What to check: the very options of the `run` it is for.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    dispatch: DispatchArgs,
}

/// Reports every problem; fails unless everything is known to be fine.
pub(crate) async fn execute(args: CheckArgs, database: &DatabaseArgs, output: Output) -> anyhow::Result<()> {
    let checked = args.dispatch.check(database).await;
    let failed = checked.count(State::Problem) + checked.count(State::Unknown);
    output.write(&json!({ "ok": failed == 0, "checks": checked.checks }), || text(&checked))?;
    if failed == 0 {
        Ok(())
    } else {
        Err(anyhow::anyhow!("{}: do what the report says, then check again", sum(&checked)))
    }
}

fn text(checked: &Checked) -> String {
    let queues: BTreeSet<_> = checked.checks.iter().filter_map(|check| check.subject.as_deref()).collect();
    let rows = checked.checks.iter().map(|check| {
        // the queue is named where there are several to mix up
        let of = check.subject.as_deref().filter(|_| queues.len() > 1);
        let name = of.map_or_else(|| check.name.to_owned(), |queue| format!("{} of {queue}", check.name));
        [check.state.to_string(), name, failure::safe(&check.finding)]
    });
    format!("{}\n\n{}", output::table(["state", "check", "found"], rows), sum(checked))
}

fn sum(checked: &Checked) -> String {
    let names = [(State::Ok, ""), (State::Warning, "s"), (State::Unknown, ""), (State::Problem, "s")];
    let counts = names.map(|(state, plural)| (checked.count(state), state, plural));
    let counts = counts.iter().filter(|(count, ..)| *count > 0);
    let counts: Vec<_> = counts
        .map(|(count, state, plural)| format!("{count} {state}{}", if *count > 1 { plural } else { "" }))
        .collect();
    format!("{} checks: {}", checked.checks.len(), counts.join(", "))
}
