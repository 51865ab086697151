//! The state that all handles of one opened Postgres store share: options, clock, waiters,
//! counters, statements and sessions.
//!
//! The context also turns a driver's error into the error for callers, because its text names
//! options and its remedy names the store.
//!
//! The context keeps the timeline of the database cluster, a number that each promotion raises.
//! Invariant: once a connection of a store with several servers has found a promoted server, no
//! connection with an older timeline of that cluster is lent, whether it is new or open already. A
//! former primary takes writes until somebody stops it, and would grant locks that are held at the
//! new primary.

use std::sync::{Arc, OnceLock};

use distlock_backend_kit::{ConnectGate, EpochHistory, batch::Failure};
use distlock_core::{Clock, Epoch, Error, ErrorKind, Result, excerpt, sync::Mutex};

use super::{pool, statements::Statements};
use crate::{
    config::{Login, ServerConfig},
    counters::RequestCounters,
    dialect::CommonContext,
    network::Servers,
    statement_error::StatementError,
    tables,
    wait::WaitGroup,
};

/// The backend's short name.
pub(super) const NAME: &str = "postgres";

/// The state that the handles of one opened store share.
pub(crate) struct StoreContext {
    pub(crate) config: ServerConfig,
    pub(super) login: Login,
    pub(crate) common: CommonContext,
    pub(super) statements: Statements,
    pub(super) servers: Servers,
    pub(super) timelines: Timelines,
    pub(super) sessions: pool::Sessions,
    /// The schema in which the first connection found or created the tables. All later connections
    /// use only this schema.
    pub(super) schema: OnceLock<String>,
    pub(super) epochs: EpochHistory,
    /// Every attempt of this process to connect to the same database goes through this gate.
    pub(super) gate: Arc<ConnectGate>,
}

impl StoreContext {
    pub(super) fn new(config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        Ok(Self {
            statements: Statements::new(&config.table_prefix),
            common: CommonContext {
                clock: Arc::clone(&clock),
                wait_group: WaitGroup::pushed(),
                counters: RequestCounters::new(NAME),
                reap_after: config.reap_after,
            },
            servers: Servers::default(),
            timelines: Timelines::default(),
            sessions: pool::Sessions::default(),
            schema: OnceLock::new(),
            epochs: EpochHistory::default(),
            login: Login::new(&config, clock)?,
            gate: ConnectGate::of(format!("{NAME} {config:?}")),
            config,
        })
    }

    /// The epoch of the last connection.
    pub(super) fn epoch(&self) -> Epoch {
        self.epochs.last().unwrap_or_else(|| Epoch::new(""))
    }

    /// The error for callers. The error for a problem of the tables names the remedy.
    pub(super) fn explain(&self, failed: StatementError) -> Error {
        // An error that a new connection can cure is no problem of the tables. An error about one
        // value is a problem of a column, and the doctor reports that column.
        let (tables, value) = (!failed.meaning.reconnect, failed.meaning.one_row);
        if tables && !value {
            return self.unexpected_tables(failed);
        }
        let error = failed.into_error();
        if error.kind() == ErrorKind::InvalidConfig && tables {
            let says = format!("{}: run `distlock doctor`", error.message());
            return Error::new(ErrorKind::InvalidConfig, says).caused_by(error);
        }
        error
    }

    pub(super) fn failure(&self, failed: StatementError) -> Failure {
        let one_row = failed.meaning.one_row;
        let error = self.explain(failed);
        if one_row {
            Failure::Split(error)
        } else {
            Failure::Whole(error)
        }
    }

    /// The error for tables of a known version that lack a table or column.
    pub(super) fn unexpected_tables(&self, failed: StatementError) -> Error {
        let error = failed.into_error();
        if error.kind() != ErrorKind::InvalidConfig {
            return error;
        }
        let problem = format!(
            "the tables are not as expected: {}",
            tables::CHANGED_BY_HAND
        );
        let url = self.config.url();
        let remedy = tables::start_over(&self.config.table_prefix, ", ", url);
        Error::new(ErrorKind::InvalidConfig, problem)
            .caused_by(error)
            .with_remedy(remedy)
    }

    pub(super) fn not_migrated(&self, problem: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidConfig, problem)
            .with_remedy(tables::migration(self.config.url()))
    }

    /// The database's name and address, for messages.
    pub(super) fn database_label(&self) -> String {
        let config = &self.config;
        format!("{} at {}", excerpt(&config.database), config.address())
    }
}

/// A state of a cluster's history. The number of the timeline has a fixed length, so that a later
/// one is the greater text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timeline {
    pub(super) system: String,
    pub(super) number: String,
}

/// The latest timeline that a connection has found. With one server, that of the last connection.
#[derive(Debug, Default)]
pub(super) struct Timelines(Mutex<Option<Timeline>>);

impl Timelines {
    /// Whether a connection has found a later timeline of the same cluster.
    pub(super) fn has_later_than(&self, timeline: &Timeline) -> bool {
        is_later(self.0.lock().as_ref(), timeline)
    }

    /// Notes the timeline of a connection that is used, unless a later one is known. Returns
    /// whether none is.
    pub(super) fn note(&self, timeline: &Timeline) -> bool {
        // One lock for both steps: between two, another connection could note a later timeline.
        let mut latest = self.0.lock();
        let newest = !is_later(latest.as_ref(), timeline);
        if newest {
            *latest = Some(timeline.clone());
        }
        newest
    }

    /// Notes the timeline of the only server, even if a later one is known: the server may have
    /// been restored from an older copy.
    pub(super) fn restart_at(&self, timeline: &Timeline) {
        *self.0.lock() = Some(timeline.clone());
    }
}

/// Whether the latest timeline is of the same cluster and later than this one.
fn is_later(latest: Option<&Timeline>, timeline: &Timeline) -> bool {
    latest.is_some_and(|it| it.system == timeline.system && it.number > timeline.number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_older_timeline_of_the_same_cluster_is_refused() {
        let timeline = |system: &str, number: &str| Timeline {
            system: system.into(),
            number: number.into(),
        };
        let timelines = Timelines::default();
        let (old, new) = (timeline("7", "0000000F"), timeline("7", "00000010"));
        assert!(!timelines.has_later_than(&old));
        assert!(timelines.note(&new));
        assert!(!timelines.note(&old));
        assert!(timelines.has_later_than(&old));
        assert!(!timelines.has_later_than(&new));
        // For example the database was restored on another server.
        let other = timeline("8", "00000001");
        assert!(!timelines.has_later_than(&other));
        timelines.restart_at(&old);
        assert!(!timelines.has_later_than(&old));
    }
}
