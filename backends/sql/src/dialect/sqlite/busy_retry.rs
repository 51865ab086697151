//! Limits the repetitions of a statement while other processes write.

use distlock_core::Moment;

use super::{connection::OpenConnection, context::StoreContext};
use crate::statement_error::StatementError;

/// Decides whether a statement is sent again that SQLite refused because another process writes.
/// The repetitions end after `busy_timeout`. Their number is limited too: SQLite sleeps for a real
/// millisecond in each repetition, even if the injected clock of a test stands still.
#[derive(Debug)]
pub(super) struct BusyRetry {
    until: Moment,
    times: u128,
}

impl BusyRetry {
    pub(super) fn new(context: &StoreContext) -> Self {
        let timeout = context.config.busy_timeout;
        Self {
            until: context.common.clock.now() + timeout,
            times: timeout.as_millis(),
        }
    }

    /// Whether the statement that failed on this connection is sent again. Only a failure that has
    /// changed nothing has `meaning.retry`.
    pub(super) fn allows(
        &mut self,
        open: &OpenConnection,
        failed: &StatementError,
        context: &StoreContext,
    ) -> bool {
        if !(failed.meaning.retry && open.retries_when_busy) {
            return false;
        }
        self.times = self.times.saturating_sub(1);
        self.times > 0 && context.common.clock.now() < self.until
    }
}
