//! The state that the keeper thread shares with the locker, which owns the thread.

use std::sync::Arc;

use tokio::sync::watch;

use super::{connection::OwnConnection, schedule::Schedule};
use crate::engine::clock::Clock;

/// The clock, the schedule, the keeper's handle on the store, and the number of awaited jobs.
pub(crate) struct KeeperShared {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) schedule: Schedule,
    pub(crate) connection: OwnConnection,
    /// The number of awaited jobs that have not ended.
    pub(super) jobs: watch::Sender<usize>,
    /// The number of jobs that have not ended and keep a released lock for its minimum hold.
    pub(super) holds: watch::Sender<usize>,
}

impl KeeperShared {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            schedule: Schedule::new(Arc::clone(&clock)),
            clock,
            connection: OwnConnection::new(),
            jobs: watch::Sender::new(0),
            holds: watch::Sender::new(0),
        }
    }
}
