//! The rows of operations that a batch's statement did not carry out.

use std::collections::HashMap;

use distlock_backend_kit::operation::Operation;
use distlock_core::{FencingToken, LockName, RecordKey, Result, Version};

use crate::dialect::LockRow;

/// The rows of operations that were not carried out.
#[derive(Default)]
pub(super) struct RefusedRows {
    pub(super) locks: HashMap<LockName, Result<LockRow>>,
    pub(super) records: HashMap<RecordKey, Version>,
}

/// Detects a lock that changes hands very fast: each attempt finds the lock held, and each read
/// finds the lock free, but its token changes between the reads. Such a lock is busy, and no read
/// shows its holder.
#[derive(Default)]
pub(super) struct FastTurnover {
    token: Option<FencingToken>,
    seen: bool,
}

impl FastTurnover {
    pub(super) fn see(&mut self, op: &Operation, refused_rows: &RefusedRows) {
        if let Some(Ok(row)) = op.lock().and_then(|name| refused_rows.locks.get(name)) {
            let before = self.token.replace(row.last_token);
            self.seen = before.is_some_and(|before| before != row.last_token) && row.held.is_none();
        }
    }

    /// Whether the operation is an acquire that failed because of the fast turnover.
    pub(super) const fn is_reason(&self, op: &Operation) -> bool {
        matches!(op, Operation::Acquire(_)) && self.seen
    }
}
