//! What a batch's statement and the look at its rows bring back.

use std::collections::HashMap;

use distlock_core::{FencingToken, LockName, RecordKey, Result, Version};

use crate::{dialect::postgres::rows, operation::Operation};

/// What the statement says of an operation it carried out.
pub(super) enum CarriedOut {
    Token(Result<FencingToken>),
    HandedOver {
        token: Result<FencingToken>,
        others_waiting: bool,
    },
    Freed {
        others_waiting: bool,
    },
}

/// What stands in the rows of the refused.
#[derive(Default)]
pub(super) struct RefusedRows {
    pub(super) locks: HashMap<LockName, Result<rows::LockRowAndNonce>>,
    pub(super) records: HashMap<RecordKey, Version>,
}

/// A lock that was held whenever it was asked for and free whenever it was looked at, because others pass it on faster than
/// that: its token tells that they do. It is busy, and nobody can say who has it.
#[derive(Default)]
pub(super) struct FastTurnover {
    token: Option<FencingToken>,
    seen: bool,
}

impl FastTurnover {
    pub(super) fn see(&mut self, op: &Operation, refused_rows: &RefusedRows) {
        if let Some(Ok(look)) = op.lock().and_then(|name| refused_rows.locks.get(name)) {
            let before = self.token.replace(look.row.last_token);
            self.seen = before.is_some_and(|before| before != look.row.last_token)
                && look.row.held.is_none();
        }
    }

    /// Whether that is why it was not taken.
    pub(super) const fn is_reason(&self, op: &Operation) -> bool {
        matches!(op, Operation::Acquire(_)) && self.seen
    }
}
