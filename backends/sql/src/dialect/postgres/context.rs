//! The state that all handles of one opened Postgres store share: options, clock, waiters,
//! counters, statements and sessions.
//!
//! The context also turns a driver's error into the error for callers, because the remedy in its
//! text names options.

use std::sync::{Arc, OnceLock};

use distlock_backend_kit::{ConnectGate, EpochHistory, batch::Failure};
use distlock_core::{Clock, Epoch, Error, ErrorKind, Result, excerpt};

use super::{session, statements::Statements, timeline::Timelines};
use crate::{
    config::{Login, ServerConfig},
    counters::RequestCounters,
    dialect::CommonContext,
    migrate,
    network::Servers,
    statement_error::StatementError,
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
    pub(super) sessions: session::Sessions,
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
            sessions: session::Sessions::default(),
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
        let command = self.migrate_command();
        let advice = migrate::start_over_advice(&self.config.table_prefix, ", ", &command);
        let problem = format!("the tables are not as expected: {advice}");
        Error::new(ErrorKind::InvalidConfig, problem).caused_by(error)
    }

    pub(super) fn not_migrated(&self, problem: &str) -> Error {
        let command = self.migrate_command();
        Error::new(
            ErrorKind::InvalidConfig,
            format!("{problem}: run `{command}`"),
        )
    }

    pub(super) fn migrate_command(&self) -> String {
        format!("distlock migrate --backend '{}'", self.config.url())
    }

    /// The database's name and address, for messages.
    pub(super) fn database_label(&self) -> String {
        let config = &self.config;
        format!("{} at {}", excerpt(&config.database), config.address())
    }
}
