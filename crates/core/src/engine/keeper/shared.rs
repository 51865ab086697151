//! The parts that the keeper thread shares with its owner.

use std::sync::Arc;

use tokio::sync::watch;

use super::{connection::OwnConnection, schedule::Schedule};
use crate::engine::clock::Clock;

/// The clock, the schedule, the connection, and the count of jobs.
pub(crate) struct KeeperShared {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) schedule: Schedule,
    pub(crate) connection: OwnConnection,
    /// Awaited jobs that have not ended.
    pub(super) jobs: watch::Sender<usize>,
}

impl KeeperShared {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            schedule: Schedule::new(Arc::clone(&clock)),
            clock,
            connection: OwnConnection::new(),
            jobs: watch::Sender::new(0),
        }
    }
}
