//! The state that all handles of one opened MySQL store share: options, clock, waiters, counters
//! and statements.
//!
//! The context never uses a connection.

use std::sync::Arc;

use distlock_backend_kit::{ConnectGate, EpochHistory};
use distlock_core::{Clock, Result};

use super::statements::Statements;
use crate::{
    config::{Login, Product, ServerConfig},
    counters::RequestCounters,
    dialect::CommonContext,
    network::Servers,
    wait::WaitGroup,
};

/// The backend's short name.
pub(super) const NAME: &str = "mysql";

/// The state that the handles of one opened store share.
pub(crate) struct StoreContext {
    pub(crate) config: ServerConfig,
    pub(super) login: Login,
    pub(crate) common: CommonContext,
    pub(super) statements: Statements,
    pub(super) epochs: EpochHistory,
    pub(super) servers: Servers,
    /// Every attempt of this process to connect to the same database goes through this gate.
    pub(super) gate: Arc<ConnectGate>,
}

impl StoreContext {
    pub(super) fn new(mut config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.product = Product::MySql;
        config.check()?;
        Ok(Self {
            statements: Statements::new(&config.table_prefix),
            common: CommonContext {
                clock: Arc::clone(&clock),
                wait_group: WaitGroup::adaptive(),
                counters: RequestCounters::new(NAME),
                reap_after: config.reap_after,
            },
            epochs: EpochHistory::default(),
            login: Login::new(&config, clock)?,
            servers: Servers::default(),
            gate: ConnectGate::of(format!("{NAME} {config:?}")),
            config,
        })
    }

    /// Whether an earlier connection has read the tables.
    pub(super) fn was_opened(&self) -> bool {
        self.epochs.last().is_some()
    }

    pub(super) fn reap_after(&self) -> u128 {
        self.config.reap_after.as_micros()
    }
}
