//! Check: whether a dispatcher can work on this database, found out without changing anything.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use humantime::format_duration;
use tokio::time::{Instant, timeout_at};

use super::{Store, target};
use crate::check::{Check, PATIENCE, State};
use crate::config::{ConfigError, MIN_CONNECTIONS};
use crate::migrate::{self, POSTGRES_VERSIONS, SchemaError};

const CONNECTION: &str = "connection";
const VERSION: &str = "database version";
const WRITABLE: &str = "writable";
const ISOLATION: &str = "isolation level";
const PLANNER: &str = "planner settings";
const POOL: &str = "pool size";
const CLOCK: &str = "clock skew";
const SCHEMA: &str = "schema version";
const PRIVILEGES: &str = "privileges";
const INDEXES: &str = "indexes";

/// How far apart clocks may be before somebody reading logs is misled.
const CLOCKS_APART: TimeDelta = TimeDelta::seconds(1);
/// How far a clock may be off before AWS refuses what it signed. Source: the AWS general reference, "Authenticating
/// requests (AWS Signature Version 4)", "Request timestamp".
const CLOCKS_FAR_APART: TimeDelta = TimeDelta::minutes(5);

/// The indexes that the statements of `store/sql/` are written for, as `pg_get_indexdef` tells them.
const NEEDED: [(&str, &str); 7] = [
    ("outbox_pkey", "btree (id)"),
    ("outbox_ready", "btree (available_at, id) WHERE ((status = 'pending'::text) AND (NOT parked))"),
    ("outbox_leased", "btree (lease_until, id) WHERE (status = 'processing'::text)"),
    (
        "outbox_unfinished",
        "btree (aggregate_id, id) WHERE (status = ANY (ARRAY['pending'::text, 'processing'::text, 'dead'::text]))",
    ),
    ("outbox_dead", "btree (id) WHERE (status = 'dead'::text)"),
    ("outbox_done", "btree (done_at, id) WHERE (status = 'done'::text)"),
    ("outbox_parked", "btree (aggregate_id, id) WHERE ((status = 'pending'::text) AND parked)"),
];

impl Store {
    /// Looks at server, connections, clock, schema, privileges and indexes. Changes nothing; over within 15 s.
    pub async fn checks(&self) -> Vec<Check> {
        let deadline = Instant::now() + PATIENCE;
        let mut checks = match self.check_session(deadline).await {
            Ok(checks) => checks,
            Err(problem) => return vec![Check::problem(CONNECTION, &problem)],
        };
        checks.push(self.check_pool(deadline).await);
        checks.push(self.check_clock(deadline).await);
        let schema = self.check_version(deadline).await;
        let is_current = schema.state == State::Ok;
        checks.push(schema);
        if is_current {
            checks.push(self.check_privileges(deadline).await);
            checks.extend(self.check_indexes(deadline).await);
        } else {
            let later = |name| Check::new(name, State::Unknown, "see the schema version first, then check again");
            checks.extend([PRIVILEGES, INDEXES].map(later));
        }
        checks
    }

    async fn check_session(&self, deadline: Instant) -> Result<Vec<Check>, String> {
        let query = sqlx::query_file!("src/store/sql/check_session.sql").fetch_one(&self.pool);
        let found = answer(deadline, query).await.map_err(|failed| failed.finding)?;
        let (oldest, newest) = (POSTGRES_VERSIONS.start(), POSTGRES_VERSIONS.end());
        let version = format!("PostgreSQL {}", found.version);
        Ok(vec![
            Check::ok(CONNECTION, target(&self.pool.connect_options())),
            if found.major < *oldest {
                Check::problem(VERSION, &format!("{version} is too old: use version {oldest} or later"))
            } else if found.major > *newest {
                let finding =
                    format!("{version} is newer than this was tested on: expect version {oldest} to {newest}");
                Check::new(VERSION, State::Warning, finding)
            } else {
                Check::ok(VERSION, version)
            },
            if found.is_read_only {
                Check::problem(
                    WRITABLE,
                    "the server only reads, as a standby does: name the primary in the database URL",
                )
            } else {
                Check::ok(WRITABLE, "the server takes writes")
            },
            if found.isolation == "read committed" {
                Check::ok(ISOLATION, found.isolation)
            } else {
                let finding = format!(
                    "transactions are {}, and claims mean to see what is committed now: set \
                     default_transaction_isolation to 'read committed' on these connections",
                    found.isolation
                );
                Check::problem(ISOLATION, &finding)
            },
            if found.has_planner_settings {
                Check::ok(PLANNER, "as the statements need them")
            } else {
                let finding = "a claim may read the whole table: set plan_cache_mode = force_generic_plan and \
                               enable_seqscan = off on these connections, and use no pooler that takes settings away";
                Check::new(PLANNER, State::Warning, finding)
            },
        ])
    }

    /// Publishing takes no connection, so what counts is not how many requests are in flight.
    async fn check_pool(&self, deadline: Instant) -> Check {
        let most = self.pool.options().get_max_connections();
        if most < MIN_CONNECTIONS {
            return Check::problem(POOL, &ConfigError::Connections(most));
        }
        let query = sqlx::query_file_scalar!("src/store/sql/check_connections.sql").fetch_one(&self.pool);
        let left = match answer(deadline, query).await {
            Ok(left) => left,
            Err(failed) => return failed.of(POOL),
        };
        let more = i64::from(most.saturating_sub(self.pool.size()));
        if left < more {
            let finding = format!(
                "PostgreSQL lets this role open {} more connections, and the pool may open {more} more: make the pool \
                 smaller, 3 at least, or raise the limit of the server, the database or the role",
                left.max(0)
            );
            return Check::new(POOL, State::Warning, finding);
        }
        Check::ok(
            POOL,
            format!("{most} connections: one claims, one writes results, others maintain; {left} more are free"),
        )
    }

    async fn check_clock(&self, deadline: Instant) -> Check {
        // the shortest of three: what a new connection or a busy server adds says nothing of the clocks
        let mut best: Option<(TimeDelta, TimeDelta)> = None;
        for _ in 0..3 {
            let (sent, started) = (host_clock(), Instant::now());
            let query = sqlx::query_file_scalar!("src/store/sql/check_clock.sql").fetch_one(&self.pool);
            let there = match answer(deadline, query).await {
                Ok(there) => there,
                Err(failed) => return failed.of(CLOCK),
            };
            let within = TimeDelta::from_std(started.elapsed() / 2).unwrap_or(TimeDelta::MAX);
            let within = within.max(TimeDelta::milliseconds(1));
            if best.is_none_or(|(_, least)| within < least) {
                best = Some((sent + within - there, within));
            }
        }
        let (ahead, within) = best.unwrap_or_default();
        skew(ahead, within)
    }

    async fn check_version(&self, deadline: Instant) -> Check {
        match timeout_at(deadline, migrate::check(&self.pool)).await {
            Ok(Ok(())) => Check::ok(SCHEMA, migrate::known_version().to_string()),
            // on a schema of which nobody knows that it fits nothing is started, so this is a problem as well
            Ok(Err(SchemaError::Query(error))) => Check::problem(SCHEMA, &Failed::new(&error).finding),
            Ok(Err(error)) => Check::problem(SCHEMA, &error),
            Err(_) => Check::problem(SCHEMA, &Failed::late().finding),
        }
    }

    async fn check_privileges(&self, deadline: Instant) -> Check {
        let query = sqlx::query_file!("src/store/sql/check_privileges.sql").fetch_one(&self.pool);
        match answer(deadline, query).await {
            Err(failed) => failed.of(PRIVILEGES),
            Ok(found) if found.may_select && found.may_update => Check::ok(PRIVILEGES, "SELECT and UPDATE on outbox"),
            Ok(found) => {
                let finding = format!("role {0} may not dispatch: GRANT SELECT, UPDATE ON outbox TO {0}", found.role);
                Check::problem(PRIVILEGES, &finding)
            }
        }
    }

    async fn check_indexes(&self, deadline: Instant) -> Vec<Check> {
        let query = sqlx::query_file!("src/store/sql/check_indexes.sql").fetch_all(&self.pool);
        let found: HashMap<_, _> = match answer(deadline, query).await {
            Ok(found) => found.into_iter().map(|index| (index.name, (index.is_valid, index.holds))).collect(),
            Err(failed) => return vec![failed.of(INDEXES)],
        };
        let wrong = NEEDED.iter().filter_map(|(name, needed)| {
            let create = if *name == "outbox_pkey" {
                "ALTER TABLE outbox ADD CONSTRAINT outbox_pkey PRIMARY KEY (id)".to_owned()
            } else {
                format!("CREATE INDEX CONCURRENTLY {name} ON outbox USING {needed}")
            };
            let finding = match found.get(*name) {
                None => format!("index {name} is missing: {create}"),
                Some((false, _)) => format!("index {name} is not valid: REINDEX INDEX CONCURRENTLY {name}"),
                Some((true, holds)) if holds != needed => {
                    format!("index {name} is on {holds}: DROP INDEX CONCURRENTLY {name}, then {create}")
                }
                Some((true, _)) => return None,
            };
            Some(Check::problem(INDEXES, &finding))
        });
        let wrong: Vec<_> = wrong.collect();
        if wrong.is_empty() { vec![Check::ok(INDEXES, format!("{} present and valid", NEEDED.len()))] } else { wrong }
    }
}

/// What both clocks say is told apart from what the network adds: `ahead` is known to within `within`.
fn skew(ahead: TimeDelta, within: TimeDelta) -> Check {
    let apart = ahead.abs();
    let shown =
        |time: TimeDelta| format_duration(Duration::from_millis(time.num_milliseconds().unsigned_abs())).to_string();
    let least = apart - within;
    if least < CLOCKS_APART {
        return Check::ok(CLOCK, format!("{} apart, give or take {}", shown(apart), shown(within)));
    }
    let side = if ahead > TimeDelta::zero() { "ahead of" } else { "behind" };
    let finding = format!("this machine's clock is {} {side} the database's", shown(apart));
    if least < CLOCKS_FAR_APART {
        let finding = format!("{finding}, and logs will mislead: let a time service (NTP) set both");
        return Check::new(CLOCK, State::Warning, finding);
    }
    Check::problem(
        CLOCK,
        &format!("{finding}, and AWS refuses what is signed so far off: let a time service (NTP) set both"),
    )
}

#[expect(clippy::disallowed_methods, reason = "what is compared here are the clocks themselves")]
fn host_clock() -> DateTime<Utc> {
    Utc::now()
}

/// A look that gave no answer.
struct Failed {
    state: State,
    finding: String,
}

impl Failed {
    fn new(error: &sqlx::Error) -> Self {
        match error.as_database_error() {
            Some(error) => Self {
                state: State::Problem,
                finding: format!("PostgreSQL refuses ({}): correct that", error.message()),
            },
            None => Self { state: State::Unknown, finding: format!("no answer of PostgreSQL ({error}): check again") },
        }
    }

    fn late() -> Self {
        let patience = format_duration(PATIENCE);
        let finding = format!("no answer of PostgreSQL within {patience}: see what it is busy with, and check again");
        Self { state: State::Unknown, finding }
    }

    fn of(self, name: &'static str) -> Check {
        Check::new(name, self.state, self.finding)
    }
}

async fn answer<T>(deadline: Instant, query: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Failed> {
    match timeout_at(deadline, query).await {
        Ok(result) => result.map_err(|error| Failed::new(&error)),
        Err(_) => Err(Failed::late()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_apart_by_what_the_network_cannot_explain() {
        let found = |ahead, within| {
            let check = skew(TimeDelta::milliseconds(ahead), TimeDelta::milliseconds(within));
            format!("{}: {}", check.state, check.finding)
        };
        let lines = [
            found(-12, 3),
            found(999, 0),
            found(1_900, 1_000),
            found(-1_000, 0),
            found(301_000, 2_000),
            found(300_000, 0),
            found(-300_000, 0),
        ];
        insta::assert_snapshot!(lines.join("\n"), @r"
            ok: 12ms apart, give or take 3ms
            ok: 999ms apart, give or take 0s
            ok: 1s 900ms apart, give or take 1s
            warning: this machine's clock is 1s behind the database's, and logs will mislead: let a time service (NTP) set both
            warning: this machine's clock is 5m 1s ahead of the database's, and logs will mislead: let a time service (NTP) set both
            problem: this machine's clock is 5m ahead of the database's, and AWS refuses what is signed so far off: let a time service (NTP) set both
            problem: this machine's clock is 5m behind the database's, and AWS refuses what is signed so far off: let a time service (NTP) set both
            ");
    }
}
