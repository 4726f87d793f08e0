//! A supply of claims: from copies of one table, a new one whenever nothing is left of the last.

use std::time::{Duration, Instant};

use ordered_outbox::store::{Look, Session, Window};
use sqlx::PgPool;

use super::support::database::Database;
use super::support::{BATCH, article, ours};

#[derive(Clone, Copy)]
pub(crate) enum Claimer {
    Ours,
    Article,
}

impl Claimer {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Article => "article",
        }
    }
}

pub(crate) struct Supply<'a> {
    template: &'a Database,
    claimer: Claimer,
    copy: Option<Copy>,
}

/// What is claimed from just now.
struct Copy {
    connections: Connections,
    // dropped after its connections
    _database: Database,
}

enum Connections {
    Ours { session: Session, earlier: Option<Window> },
    Article(PgPool),
}

impl<'a> Supply<'a> {
    pub(crate) const fn new(template: &'a Database, claimer: Claimer) -> Self {
        Self { template, claimer, copy: None }
    }

    /// The time that so many claims take; what is claimed is finalized in between, untimed.
    pub(crate) async fn take(&mut self, claims: u64) -> Duration {
        let (mut took, mut left) = (Duration::ZERO, claims);
        while left > 0 {
            if self.copy.is_none() {
                self.copy = Some(self.new_copy().await);
            }
            let copy = self.copy.as_mut().expect("it was made just now");
            match copy.connections.claim().await {
                Some(claim) => {
                    took += claim;
                    left -= 1;
                }
                None => self.copy = None,
            }
        }
        took
    }

    async fn new_copy(&self) -> Copy {
        let database = self.template.copy().await;
        let mut connections = match self.claimer {
            Claimer::Ours => Connections::Ours { session: database.store(1).await.session(), earlier: None },
            Claimer::Article => Connections::Article(database.plain_pool(1).await),
        };
        // the first claim of a connection pays for what the others find cached
        connections.claim().await;
        Copy { connections, _database: database }
    }
}

impl Connections {
    /// `None`: nothing was there.
    async fn claim(&mut self) -> Option<Duration> {
        match self {
            Self::Ours { session, earlier } => {
                let look = earlier.as_ref().map_or(Look::from_the_front(BATCH), |earlier| Look::after(earlier, BATCH));
                let start = Instant::now();
                let claim = session.claim(&ours::request(look)).await.unwrap();
                let took = start.elapsed();
                *earlier = Some(claim.window);
                ours::finish(session, &claim.messages).await;
                (!claim.messages.is_empty() || !claim.window.ended).then_some(took)
            }
            Self::Article(pool) => {
                let start = Instant::now();
                let claimed = article::claim(pool, "bench").await;
                let took = start.elapsed();
                article::mark_all_done(pool, &claimed).await;
                (!claimed.is_empty()).then_some(took)
            }
        }
    }
}
