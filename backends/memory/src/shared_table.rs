//! The part of a store that all handles on its lock table share.

use std::sync::Arc;

use distlock_core::{
    AcquireRequest, Attempt, Capabilities, Clock, Epoch, FencingToken, Grant, Result,
};

use crate::{now::Now, store_queue::QueueEntry, table::Table};

/// The backend's short name.
pub(crate) const BACKEND: &str = "memory";

/// The table, and the clock, capabilities and epoch that all its handles share.
#[derive(Debug)]
pub(crate) struct SharedTable {
    pub(crate) table: Table,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) capabilities: Capabilities,
    pub(crate) epoch: Epoch,
}

impl SharedTable {
    /// Makes one attempt, at the clock's present time.
    pub(crate) fn try_acquire(
        &self,
        request: &AcquireRequest,
        entry: Option<QueueEntry>,
    ) -> Result<Attempt<Grant>> {
        let attempt = self
            .table
            .try_acquire(Now::of(&*self.clock), request, entry)?;
        Ok(attempt.map(|token| self.new_grant(token, request)))
    }

    /// Returns the grant of this request, with the store's epoch.
    pub(crate) fn new_grant(&self, token: FencingToken, request: &AcquireRequest) -> Grant {
        Grant::new(token, self.epoch.clone(), request.ttl.duration())
    }
}
