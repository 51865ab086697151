//! Limits how long a statement is sent again while other processes write.

use distlock_core::Moment;

use super::context::StoreContext;

/// How often a statement is sent again that was refused because others write: until `busy_timeout`
/// is over. The number of tries limits it too, because SQLite sleeps for a real millisecond each
/// time, whatever the injected clock says.
#[derive(Debug)]
pub(super) struct BusyRetry {
    until: Moment,
    times: u128,
}

impl BusyRetry {
    pub(super) fn new(context: &StoreContext) -> Self {
        let timeout = context.config.busy_timeout;
        Self {
            until: context.clock.now() + timeout,
            times: timeout.as_millis(),
        }
    }

    /// Whether to send it again. The caller must know that nothing has happened.
    pub(super) fn may_retry(&mut self, context: &StoreContext) -> bool {
        self.times = self.times.saturating_sub(1);
        self.times > 0 && context.clock.now() < self.until
    }
}
