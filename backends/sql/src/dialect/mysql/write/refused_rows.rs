//! The rows of refused operations, which give the reason of each refusal.

use std::collections::HashMap;

use distlock_backend_kit::operation::Operation;
use distlock_core::{Epoch, LockName, Result};

use crate::dialect::{LockRow, lock_of_refusal};

/// The rows of refused operations, and the store's history.
pub(super) struct RefusedRows {
    pub(super) rows: Result<HashMap<LockName, Result<LockRow>>>,
    pub(super) epoch: Epoch,
    pub(super) history_changed: bool,
}

impl RefusedRows {
    /// The row of a refused operation. `None` when there is no row, or when the refusal has only
    /// one possible reason and the row was not read.
    pub(super) fn row(&self, op: &Operation) -> Result<Option<&LockRow>> {
        let Some(name) = lock_of_refusal(op) else {
            return Ok(None);
        };
        let rows = self.rows.as_ref().map_err(Clone::clone)?;
        rows.get(name)
            .map(Result::as_ref)
            .transpose()
            .map_err(Clone::clone)
    }
}
