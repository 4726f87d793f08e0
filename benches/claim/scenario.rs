//! The tables that claims are measured on.

use sqlx::PgConnection;

use super::support::database::Database;
use super::support::quick_or;
use super::support::table::Table;

pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) table: Table,
    /// Somebody's old snapshot is held open: nothing that was updated can be cleaned up.
    snapshot: bool,
    /// One aggregate x 100,000, of which more is asked.
    pub(crate) is_deep: bool,
}

impl Scenario {
    fn new(table: Table) -> Self {
        Self { name: table.name.clone(), table, snapshot: false, is_deep: false }
    }

    /// Opened before the first claim.
    pub(crate) async fn snapshot(&self, database: &Database) -> Option<PgConnection> {
        if self.snapshot { Some(database.old_snapshot().await) } else { None }
    }
}

pub(crate) fn all() -> Vec<Scenario> {
    let mut tables = vec![
        Table::even(100_000, 1),
        Table::hot(1_000, 1_000),
        Table::hot(10_000, 1_000),
        Table::hot(100_000, 1_000),
        Table::even(20, quick_or(1_000, 5_000)),
        Table::even(100, quick_or(500, 10_000)),
    ];
    tables.extend([0, 10, 50, 90].map(|percent| Table::gated(1_000, quick_or(20, 100), percent)));
    tables.push(Table::done(quick_or(200_000, 1_000_000), 2_000));
    tables.push(Table::backoff(100_000, 2_000));
    let mut all: Vec<_> = tables.into_iter().map(Scenario::new).collect();
    all[3].is_deep = true;
    all.extend([Table::even(100_000, 1), Table::even(20, quick_or(1_000, 5_000))].map(|table| Scenario {
        name: format!("{}, old snapshot open", table.name),
        snapshot: true,
        ..Scenario::new(table)
    }));
    all
}
