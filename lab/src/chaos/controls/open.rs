//! Opens a control for one process, and starts the servers of a run.

use std::{path::Path, sync::Arc};

use anyhow::Result;

use super::{
    kinds::Control, lock::ControlLock, redlock, rslock, session, set_nx, watchdog, zookeeper,
};
use crate::chaos::stores::RunningStore;

/// Number of servers for a lock that needs a majority.
const SERVERS: usize = 3;

/// Starts the servers of a control. The function blocks.
pub(super) fn start_store(control: Control, folder: &Path) -> Result<RunningStore> {
    match control {
        Control::Redlock | Control::Rslock => RunningStore::start_independent_redis(SERVERS),
        _ => RunningStore::start(control.store(), folder, false),
    }
}

/// Opens the lock for one process. The lock connects when it is used.
pub(in crate::chaos) fn open(control: Control, url: &str) -> Result<Arc<dyn ControlLock>> {
    let urls = || url.split(',').collect::<Vec<_>>();
    Ok(match control {
        Control::SetNxDel => Arc::new(set_nx::SetNx::new(url, false)?),
        Control::SetNxCompare => Arc::new(set_nx::SetNx::new(url, true)?),
        Control::Watchdog => Arc::new(watchdog::Watchdog::new(url)?),
        Control::Redlock => Arc::new(redlock::Redlock::new(&urls())?),
        Control::Rslock => Arc::new(rslock::Rslock::new(&urls())),
        Control::GetLock => Arc::new(session::GetLock::new(url)?),
        Control::AdvisoryLock => Arc::new(session::AdvisoryLock::new(url)?),
        Control::ZookeeperClient => Arc::new(zookeeper::ZooKeeperRecipe::new(url)?),
    })
}
