//! The part of an open store that all its sessions use.
//!
//! This part owns the configuration, the clock, the threads and the list of ended leases. This part
//! must not refer to any session, because each session refers to this part, and a cycle of
//! references would never be freed.

use std::{sync::Arc, time::Duration};

use distlock_backend_kit::RequestCount;
use distlock_core::{Clock, Moment};
use tokio::{runtime::Handle as Runtime, sync::OnceCell};

use super::{Login, ended_leases::EndedLeases, io_thread::IoThread};
use crate::{config::ZooKeeperConfig, names::Layout};

/// The part of a store that outlives each of its sessions.
pub(crate) struct StoreContext {
    pub(crate) config: ZooKeeperConfig,
    pub(crate) login: Login,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) layout: Layout,
    pub(crate) runtime: Runtime,
    pub(crate) io_thread: Arc<IoThread>,
    /// The servers' tick or a longer time; empty before it was measured.
    pub(crate) tick: OnceCell<Duration>,
    pub(crate) ended_leases: EndedLeases,
    /// The requests that were sent. The client's own pings, and the requests that open a session,
    /// are not counted.
    pub(crate) requests: RequestCount,
}

impl StoreContext {
    /// Sleeps until a moment of the store's clock.
    pub(crate) async fn sleep_until(&self, until: Moment) {
        self.clock.sleep(until.since(self.clock.now())).await;
    }

    /// Returns the time limit for the answers to an operation that starts now.
    pub(crate) fn operation_deadline(&self) -> Moment {
        self.clock.now() + self.config.request_timeout
    }
}
