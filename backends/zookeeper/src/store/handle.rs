//! One user's access to an open store.
//!
//! Invariant: the supervisor counts each open handle once. The session is closed after the last
//! handle.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::OpenFlag;
use distlock_core::{Clock, Moment, Result};

use super::supervisor::Supervisor;
use crate::{
    config::ZooKeeperConfig,
    doctor::explain,
    session::{Session, StoreContext},
};

/// How long closing waits until the session is closed at the ensemble.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// One user of a [`Supervisor`]. The session ends with the last one.
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
        match handle.supervisor.first_session().await {
            Ok(()) => Ok(handle),
            Err(error) => Err(explain(&context.config, &*context.clock, error).await),
        }
    }

    /// Another handle on the same session.
    pub(crate) fn another(&self) -> Self {
        self.supervisor.add_handle();
        Self {
            supervisor: Arc::clone(&self.supervisor),
            open: OpenFlag::default(),
        }
    }

    /// The supervisor of the store's sessions.
    pub(crate) fn supervisor(&self) -> Result<&Arc<Supervisor>> {
        self.open.check("zookeeper")?;
        Ok(&self.supervisor)
    }

    /// The part of the store that its sessions use.
    pub(crate) fn context(&self) -> Result<&StoreContext> {
        Ok(&self.supervisor()?.context)
    }

    /// Whether the handle is open, for tasks that outlive the operation that asks.
    pub(crate) const fn open_flag(&self) -> &OpenFlag {
        &self.open
    }

    /// How many requests all handles of this store have sent, also handles that were closed.
    pub(crate) fn requests_sent(&self) -> u64 {
        self.supervisor.context.requests.sent()
    }

    /// The present session, and until when the operation that asks for it may last.
    pub(crate) async fn session(&self) -> Result<(Arc<Session>, Moment)> {
        let supervisor = self.supervisor()?;
        let until = supervisor.context.limit();
        Ok((supervisor.session(until).await?, until))
    }

    /// Closes the handle. After the last one, waits until the session is closed at the ensemble.
    pub(crate) async fn close(&self) {
        if !self.give_up() {
            return;
        }
        tokio::select! {
            () = self.supervisor.wait_until_closed() => {}
            () = self.supervisor.context.clock.sleep(CLOSE_TIMEOUT) => {}
        }
    }

    /// Closes the handle. `true` = it was the last one.
    fn give_up(&self) -> bool {
        self.open.close() && self.supervisor.remove_handle()
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        self.give_up();
    }
}
