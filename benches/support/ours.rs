//! Our claim and finalize, as the dispatcher makes them.

use std::time::Duration;

use ordered_outbox::outcome::Patience;
use ordered_outbox::store::{ClaimRequest, Finalize, Finalized, Look, Session};
use ordered_outbox::{DispatcherConfig, Message};

use super::{BATCH, accepting};

/// A claim with the dispatcher's defaults.
pub fn request(look: Look) -> ClaimRequest {
    let config = DispatcherConfig::default();
    ClaimRequest {
        owner: config.owner,
        lease: config.lease,
        max_attempts: config.patience.max_attempts,
        batch_size: BATCH,
        batch_bytes: config.batch_bytes,
        run_length: config.run_length,
        fill_up_to: BATCH,
        look,
        except: Vec::new(),
    }
}

/// All of them are done, as the finalizer writes them.
pub async fn finish(session: &mut Session, messages: &[Message]) {
    if messages.is_empty() {
        return;
    }
    let verdicts: Vec<_> = messages
        .iter()
        .enumerate()
        .map(|(place, message)| {
            let behind = messages.get(place + 1);
            let ends_lane = behind.is_none_or(|behind| behind.aggregate_id != message.aggregate_id);
            let done = Patience::default().verdict(message, accepting::accepted(), Duration::ZERO);
            Finalize { ends_lane, ..Finalize::new(message, done.expect("published is a verdict")) }
        })
        .collect();
    let answers = session.finalize(&verdicts).await.unwrap();
    assert!(answers.iter().all(|answer| *answer == Finalized::Finalized));
}
