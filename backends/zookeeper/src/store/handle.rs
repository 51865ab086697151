//! One user's access to an open store.
//!
//! Invariant: the supervisor counts each open handle once. The session is closed after the last
//! handle is closed or dropped.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::OpenFlag;
use distlock_core::{Clock, Moment, Result, at_most};

use super::supervisor::Supervisor;
use crate::{
    config::ZooKeeperConfig,
    doctor::add_server_states,
    session::{Session, StoreContext},
};

/// The time for which `close` waits until the session is closed at the ensemble.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// One user of a [`Supervisor`]. The session ends after the last handle.
#[derive(Debug)]
pub(crate) struct StoreHandle {
    supervisor: Arc<Supervisor>,
    open: OpenFlag,
}

impl StoreHandle {
    /// Starts the store's threads and waits for the first session.
    pub(crate) async fn open(config: ZooKeeperConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        let handle = Self {
            supervisor: Supervisor::start(config, clock)?,
            open: OpenFlag::default(),
        };
        let context = &handle.supervisor.context;
        match handle.supervisor.wait_for_first_session().await {
            Ok(()) => Ok(handle),
            Err(error) => Err(add_server_states(&context.config, &*context.clock, error).await),
        }
    }

    /// Returns another handle on the same session.
    pub(crate) fn another_handle(&self) -> Self {
        self.supervisor.add_handle();
        Self {
            supervisor: Arc::clone(&self.supervisor),
            open: OpenFlag::default(),
        }
    }

    /// Returns the supervisor of the store's sessions; an error when this handle was closed.
    pub(crate) fn supervisor(&self) -> Result<&Arc<Supervisor>> {
        self.open.check("zookeeper")?;
        Ok(&self.supervisor)
    }

    /// Returns the part of the store that its sessions share.
    pub(crate) fn context(&self) -> Result<&StoreContext> {
        Ok(&self.supervisor()?.context)
    }

    /// Returns the flag that says whether this handle is open. A caller can keep the flag beyond
    /// one operation.
    pub(crate) const fn open_flag(&self) -> &OpenFlag {
        &self.open
    }

    /// Returns the number of requests that all handles of this store have sent, including closed
    /// handles.
    pub(crate) fn requests_sent(&self) -> u64 {
        self.supervisor.context.requests.total()
    }

    /// Waits for a live session. Returns the session, and the time limit of the caller's operation.
    pub(crate) async fn session_and_deadline(&self) -> Result<(Arc<Session>, Moment)> {
        let supervisor = self.supervisor()?;
        let until = supervisor.context.operation_deadline();
        Ok((supervisor.wait_for_session(until).await?, until))
    }

    /// Closes the handle. The call on the last handle waits until the session is closed at the
    /// ensemble.
    pub(crate) async fn close(&self) {
        if !self.mark_closed() {
            return;
        }
        let clock = &*self.supervisor.context.clock;
        at_most(clock, CLOSE_TIMEOUT, self.supervisor.wait_until_closed()).await;
    }

    /// Marks the handle as closed. `true` = this call closed the last handle.
    fn mark_closed(&self) -> bool {
        self.open.close() && self.supervisor.remove_handle()
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.mark_closed();
    }
}
