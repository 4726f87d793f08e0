//! A position among the due rows, from which a look at them goes on.

use chrono::{DateTime, Utc};

use crate::message::MessageId;

/// A place in (`available_at`, id) order, as the database told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub(super) available_at: DateTime<Utc>,
    pub(super) id: MessageId,
}

impl Position {
    /// Before every row that the table allows (years 1 to 9999, ids above 0).
    pub(super) const FRONT: Self =
        Self { available_at: DateTime::from_timestamp(-62_135_596_800, 0).expect("0001-01-01 00:00:00 UTC"), id: 0 };
}

impl Position {
    /// The place of a row that is due since `available_at`.
    #[must_use]
    pub const fn new(available_at: DateTime<Utc>, id: MessageId) -> Self {
        Self { available_at, id }
    }
}
