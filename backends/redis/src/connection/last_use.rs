//! Tests a connection that was idle before it is used again.
//!
//! A firewall or load balancer may forget an idle connection and tell neither end. The next request
//! then gets no answer, and its outcome is unknown. So a question without effect goes first, and
//! the caller does not wait long for its answer. Keep-alive packets alone are no help: a device
//! that forwards connections answers them itself, and some devices do not count them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, Moment, at_most};
use redis::{Cmd, aio::MultiplexedConnection};

/// A connection that was idle for longer than this is tested before its next use. Devices forget a
/// connection after minutes.
const IDLE: Duration = Duration::from_secs(10);

/// The time in which the test must be answered. A healthy server on a slow link answers within it.
/// A slower server loses nothing but its connection. A caller whose connection was forgotten is
/// served within half a second, and the rest of that is for the new connection and the request.
const TEST: Duration = Duration::from_millis(300);

/// The last use of one connection.
pub(crate) struct LastUse {
    clock: Arc<dyn Clock>,
    opened: Moment,
    /// The time from the opening to the last use, in milliseconds.
    used_after: AtomicU64,
}

impl LastUse {
    /// Begins with a connection that was opened now.
    pub(crate) fn now(clock: Arc<dyn Clock>) -> Self {
        Self {
            opened: clock.now(),
            clock,
            used_after: AtomicU64::new(0),
        }
    }

    /// Notes that something is sent or has come. A connection with a request on its way is not
    /// idle: its answer shows whether the connection works.
    pub(crate) fn note(&self) {
        self.used_after
            .fetch_max(self.since_opened(), Ordering::AcqRel);
    }

    pub(crate) fn is_idle(&self) -> bool {
        let used_after = Duration::from_millis(self.used_after.load(Ordering::Acquire));
        Duration::from_millis(self.since_opened()).saturating_sub(used_after) > IDLE
    }

    /// Sends a question without effect. Returns whether the server answered it soon, or refused it.
    pub(crate) async fn is_answered(&self, driver: &MultiplexedConnection, question: &Cmd) -> bool {
        let mut driver = driver.clone();
        let asking = driver.send_packed_command(question);
        let answered = match at_most(&*self.clock, TEST, asking).await {
            Some(Ok(_)) => true,
            Some(Err(error)) => !error.is_io_error() && !error.is_unrecoverable_error(),
            None => false,
        };
        if answered {
            self.note();
        }
        answered
    }

    fn since_opened(&self) -> u64 {
        let millis = self.clock.now().since(self.opened).as_millis();
        u64::try_from(millis).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;

    use super::*;

    #[test]
    fn a_connection_is_idle_after_its_last_use() {
        let clock = ManualClock::new();
        let last_use = LastUse::now(Arc::new(clock.clone()));
        for _ in 0..2 {
            clock.advance(IDLE);
            assert!(!last_use.is_idle());
            clock.advance(Duration::from_millis(1));
            assert!(last_use.is_idle());
            last_use.note();
        }
        assert!(!last_use.is_idle());
    }
}
