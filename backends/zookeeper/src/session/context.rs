//! The part of an open store that all its sessions use.
//!
//! This part owns the configuration, the clock, the threads and the list of ended leases. This part
//! must not refer to any session, because each session refers to this part, and a cycle of
//! references would never be freed.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use distlock_backend_kit::RequestCount;
use distlock_core::{Clock, LossReason, Moment, OwnerId, at_most, sync::Mutex};
use tokio::{runtime::Handle as Runtime, sync::OnceCell};

use super::{Login, io_thread::IoThread};
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
    /// Waits for `operation` at most until a moment of the store's clock, like [`at_most`].
    pub(crate) async fn at_most_until<F: Future>(
        &self,
        until: Moment,
        operation: F,
    ) -> Option<F::Output> {
        at_most(&*self.clock, until.since(self.clock.now()), operation).await
    }

    /// Returns the time limit for the answers to an operation that starts now.
    pub(crate) fn operation_deadline(&self) -> Moment {
        self.clock.now() + self.config.request_timeout
    }
}

/// The limit of stored ends of leases.
const REMEMBERED: usize = 1024;

/// The reasons for which the latest leases of a store ended, so that a later renewal gets the
/// reason: owners with their reasons, oldest first. The oldest of [`REMEMBERED`] is dropped first.
#[derive(Debug, Default)]
pub(crate) struct EndedLeases(Mutex<VecDeque<(OwnerId, LossReason)>>);

impl EndedLeases {
    /// Stores the reason for which an owner's lease ended.
    pub(crate) fn remember(&self, owner: OwnerId, reason: LossReason) {
        let mut ended = self.0.lock();
        if ended.len() >= REMEMBERED {
            ended.pop_front();
        }
        ended.push_back((owner, reason));
    }

    /// Removes the entry of an owner that has entered a queue again.
    pub(crate) fn forget(&self, owner: OwnerId) {
        self.0.lock().retain(|(known, _)| *known != owner);
    }

    /// Returns the reason for which an owner's lease ended, if it is stored.
    pub(crate) fn loss_reason(&self, owner: OwnerId) -> Option<LossReason> {
        self.0
            .lock()
            .iter()
            .rev()
            .find(|(known, _)| *known == owner)
            .map(|(_, reason)| *reason)
    }
}
