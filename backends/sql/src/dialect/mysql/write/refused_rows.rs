//! The rows of refused operations.

use std::collections::HashMap;

use distlock_core::{Epoch, LockName, Result};

use crate::dialect::LockRow;

/// What the refused are told from.
pub(super) struct RefusedRows {
    pub(super) rows: Result<HashMap<LockName, Result<LockRow>>>,
    pub(super) epoch: Epoch,
    pub(super) history_changed: bool,
}

impl RefusedRows {
    /// The row of a refused operation; `None` when there is none any more.
    pub(super) fn row(&self, name: &LockName) -> Result<Option<LockRow>> {
        let rows = self.rows.as_ref().map_err(Clone::clone)?;
        rows.get(name).cloned().transpose()
    }
}
