//! Suspects: messages whose request was not answered in time. Whose fault is that?
//!
//! A request that hangs may hang for one of its messages. So each of them goes again by itself. It is the message's own
//! fault, and spends an attempt, if it hangs by itself while the destination answers others: at least one, and ten times as
//! many as it leaves without an answer. Everything else is the destination's (P7): an outage, a brown-out in which many
//! requests hang, or nothing else to compare with.
//!
//! What counts is what happened since the message's last try that hung, so that a message is found out also where there
//! is little else to send, and a new outage cannot use up what an old one left.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::message::MessageId;

/// How many answered requests weigh up one that was not.
const ANSWERS: u64 = 10;

/// What was seen longer ago tells nothing about now.
const FORGET_AFTER: Duration = Duration::from_mins(10);

/// Most messages remembered; with more, it is an outage, and all are forgotten.
const MOST: usize = 10_000;

/// Requests to one destination so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) answered: u64,
    pub(super) hung: u64,
}

#[derive(Debug)]
struct Suspect {
    since: Instant,
    counts: Counts,
}

#[derive(Debug, Default)]
pub(super) struct Suspects {
    by_id: HashMap<MessageId, Suspect>,
}

impl Suspects {
    /// Whether this message has to go by itself.
    pub(super) fn contains(&self, id: MessageId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Something else became of it.
    pub(super) fn acquit(&mut self, id: MessageId) {
        self.by_id.remove(&id);
    }

    /// Its request hung; whether that is its own fault. `before` was counted when the request left, `now` when it was
    /// given up, with itself.
    pub(super) fn hung(&mut self, id: MessageId, is_alone: bool, before: (Instant, Counts), now: Counts) -> bool {
        let (started, counts) = before;
        let since = self.by_id.get(&id).filter(|suspect| started - suspect.since < FORGET_AFTER);
        // the earlier try hung, too, and is no evidence
        let (from, own) = since.map_or((counts, 1), |suspect| (suspect.counts, 2));
        let answered = now.answered.saturating_sub(from.answered);
        let hung = now.hung.saturating_sub(from.hung).saturating_sub(own);
        if self.by_id.len() >= MOST {
            self.by_id.clear();
        }
        self.by_id.insert(id, Suspect { since: started, counts });
        is_alone && answered > 0 && answered >= ANSWERS * hung
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: bool = true;

    fn counts(answered: u64, hung: u64) -> Counts {
        Counts { answered, hung }
    }

    #[tokio::test]
    async fn a_message_that_hangs_in_company_is_not_blamed_but_goes_by_itself_until_something_becomes_of_it() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        assert!(!suspects.contains(7));
        assert!(!suspects.hung(7, !ALONE, (now, counts(5, 0)), counts(99, 1)));
        assert!(suspects.contains(7) && !suspects.contains(8));
        suspects.acquit(7);
        assert!(!suspects.contains(7));
    }

    #[tokio::test]
    async fn a_message_that_hangs_by_itself_while_others_are_answered_is_blamed() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        assert!(suspects.hung(7, ALONE, (now, counts(5, 0)), counts(6, 1)));
    }

    // P7
    #[tokio::test]
    async fn where_nothing_is_answered_nobody_is_blamed_however_often() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        for nth in 0..1_000 {
            assert!(!suspects.hung(7, ALONE, (now, counts(5, nth)), counts(5, nth + 1)));
        }
    }

    // P7
    #[tokio::test]
    async fn where_more_than_one_in_ten_hang_nobody_is_blamed() {
        for (answered, others_hung, blamed) in [(1, 0, true), (9, 1, false), (10, 1, true), (19, 2, false)] {
            let (mut suspects, now) = (Suspects::default(), Instant::now());
            let after = counts(answered, others_hung + 1);
            assert_eq!(suspects.hung(7, ALONE, (now, counts(0, 0)), after), blamed, "{answered} {others_hung}");
        }
    }

    #[tokio::test]
    async fn what_was_answered_between_two_tries_counts_but_only_once() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        assert!(!suspects.hung(7, ALONE, (now, counts(0, 0)), counts(0, 1)));
        let later = now + Duration::from_mins(1);
        assert!(suspects.hung(7, ALONE, (later, counts(1, 1)), counts(1, 2)));
        assert!(!suspects.hung(7, ALONE, (later, counts(1, 2)), counts(1, 3)), "nothing was answered since");
    }

    // P7
    #[tokio::test]
    async fn what_was_answered_long_ago_does_not_count() {
        let (mut suspects, now) = (Suspects::default(), Instant::now());
        assert!(!suspects.hung(7, ALONE, (now, counts(0, 0)), counts(0, 1)));
        let later = now + FORGET_AFTER;
        assert!(!suspects.hung(7, ALONE, (later, counts(500, 1)), counts(500, 2)));
    }
}
