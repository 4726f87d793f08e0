//! The gate: waits for the refused event, shows it, and skips it as an operator would.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::outbox::Outbox;
use crate::producers::{LIFECYCLE, POISON_SEQ};

const LOOK_AGAIN: Duration = Duration::from_millis(500);
const REASON: &str = "bank text garbled; the shop was told by telephone";

/// What the demo saw of the gate.
#[derive(Clone, Serialize)]
pub(crate) struct Story {
    pub(crate) id: i64,
    pub(crate) aggregate_id: String,
    /// When it was listed with everything of its order waiting behind it, and when it was skipped.
    pub(crate) seen_seconds: f64,
    pub(crate) skipped_seconds: f64,
    /// Messages of other aggregates that were delivered in between.
    pub(crate) others_meanwhile: u64,
    /// The last event of the order that was delivered before the skip: the one before the refused event.
    pub(crate) reached_seq: i64,
}

/// What `outbox gates --json` prints.
#[derive(Deserialize)]
struct Page {
    gates: Vec<Gate>,
}

#[derive(Deserialize)]
struct Gate {
    id: i64,
    aggregate_id: String,
    waiting: i64,
}

pub(crate) async fn answer(outbox: &Outbox, board: &Board) -> Result<Story> {
    let aggregate_id = format!("order-{}", board.poison);
    board.state("gate", "not seen yet");
    // The gate cannot stand before the event in front of it was delivered.
    board.until(|board, _| board.tracker().seq(&aggregate_id) == POISON_SEQ - 1).await;
    let behind = LIFECYCLE.len() as i64 - POISON_SEQ;
    let gate = loop {
        let found = list(outbox).await?.into_iter().find(|gate| gate.aggregate_id == aggregate_id);
        // Wait for its later events too: only then there is something that the gate holds back.
        if let Some(gate) = found.filter(|gate| gate.waiting >= behind) {
            break gate;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    };
    let seen = board.elapsed();
    let delivered_then = board.delivered().total();
    board.state("gate", format!("at {aggregate_id}"));
    board.say(&format!("`outbox gates`:\n{}", outbox.output(&["gates"]).await?.trim_end()));

    // A person takes their time. Meanwhile the other aggregates must not notice.
    let remaining = board.expected() - behind as u64 - 1;
    let enough = (delivered_then + board.expected() / 20).min(remaining);
    board.until(|_, delivered| delivered.total() >= enough).await;
    let others_meanwhile = board.delivered().total() - delivered_then;
    let reached_seq = board.tracker().seq(&aggregate_id);

    let id = gate.id.to_string();
    outbox.output(&["skip", &id, "--reason", REASON]).await?;
    let skipped = board.elapsed();
    board.state("gate", format!("at {aggregate_id} skipped"));
    board.say(&format!("`outbox skip {id}`: {others_meanwhile} messages of other aggregates passed meanwhile"));
    Ok(Story {
        id: gate.id,
        aggregate_id,
        seen_seconds: seen.as_secs_f64(),
        skipped_seconds: skipped.as_secs_f64(),
        others_meanwhile,
        reached_seq,
    })
}

async fn list(outbox: &Outbox) -> Result<Vec<Gate>> {
    let json = outbox.output(&["gates", "--json"]).await?;
    let page: Page = serde_json::from_str(&json).context("`outbox gates --json` printed something else")?;
    Ok(page.gates)
}
