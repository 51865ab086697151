//! The state that all handles of one opened MySQL store share: options, clock, waiters, counters
//! and statements.
//!
//! The context never uses a connection, so that every other file of the dialect can use the context
//! without a circle of imports.

use std::sync::{Arc, Mutex, PoisonError};

use distlock_core::{Clock, Epoch, Result};

use super::statements::Statements;
use crate::{
    config::{Product, ServerConfig},
    counters::RequestCounters,
    wait::WaitGroup,
};

/// The backend's short name.
pub(super) const NAME: &str = "mysql";

/// The state that the handles of one opened store share.
pub(crate) struct StoreContext {
    pub(crate) config: ServerConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) wait_group: Arc<WaitGroup>,
    pub(crate) counters: RequestCounters,
    pub(super) statements: Statements,
    // A std mutex: no caller holds this mutex across an await.
    history: Mutex<History>,
}

#[derive(Default)]
struct History {
    epoch: Option<Epoch>,
    changed: bool,
}

impl StoreContext {
    pub(super) fn new(mut config: ServerConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        config.product = Product::MySql;
        config.check()?;
        Ok(Self {
            statements: Statements::new(&config.table_prefix),
            wait_group: WaitGroup::adaptive(),
            counters: RequestCounters::new(NAME),
            history: Mutex::default(),
            config,
            clock,
        })
    }

    /// Notes the epoch that a new connection has read.
    pub(super) fn note(&self, epoch: &Epoch) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let before = history.epoch.replace(epoch.clone());
        history.changed |= before.is_some_and(|before| before != *epoch);
    }

    /// Whether an earlier connection has read the tables.
    pub(super) fn was_opened(&self) -> bool {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.epoch.is_some()
    }

    /// Whether two connections have read different epochs.
    pub(super) fn history_changed(&self) -> bool {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.changed
    }

    pub(super) fn reap_after(&self) -> u128 {
        self.config.reap_after.as_micros()
    }
}
