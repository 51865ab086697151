//! The state that all handles of one opened file share: options, clocks, waiters, counters and
//! statements.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use distlock_core::{Clock, FencingToken, Result, micros, unix_time};

use super::{boot, file, options::SqliteConfig, statements::Statements};
use crate::{counters::RequestCounters, dialect::CommonContext, wait::WaitGroup};

/// The backend's short name.
pub(super) const NAME: &str = "sqlite";

/// The state that the handles of one opened file share.
pub(crate) struct StoreContext {
    pub(crate) config: SqliteConfig,
    pub(crate) path: PathBuf,
    pub(crate) common: CommonContext,
    pub(super) boot: [u8; 16],
    pub(super) statements: Statements,
    /// Whether a connection of this store was opened before.
    pub(super) was_opened: AtomicBool,
    /// Whether a log line has said that waiters poll this file.
    #[cfg(target_os = "linux")]
    pub(super) told_of_polling: AtomicBool,
}

/// The readings of the two clocks in microseconds: since boot, and since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClockReadings {
    pub(super) boot: i64,
    pub(super) wall: i64,
}

impl StoreContext {
    pub(super) fn new(config: SqliteConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let path = file::absolute(&config)?;
        Ok(Self {
            statements: Statements::new(&config.table_prefix),
            boot: boot::id(&config, &path)?,
            common: CommonContext {
                clock,
                wait_group: WaitGroup::steady(),
                counters: RequestCounters::new(NAME),
                reap_after: config.reap_after,
            },
            was_opened: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            told_of_polling: AtomicBool::new(false),
            config,
            path,
        })
    }

    pub(super) fn was_opened(&self) -> bool {
        self.was_opened.load(Ordering::Acquire)
    }

    pub(super) fn now(&self) -> ClockReadings {
        let since_boot = self.common.clock.now().since_boot().as_micros();
        let wall = micros(unix_time(&*self.common.clock)).clamp(1, FencingToken::LIMIT - 1);
        ClockReadings {
            boot: i64::try_from(since_boot).unwrap_or(i64::MAX),
            wall: i64::try_from(wall).unwrap_or(i64::MAX),
        }
    }
}
