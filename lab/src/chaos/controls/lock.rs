//! The traits that a control implements, so that the lab's workers can use it.

use std::time::Duration;

use async_trait::async_trait;

/// The lock of another library in one process.
#[async_trait]
pub(in crate::chaos) trait ControlLock: Send + Sync {
    /// Asks for the lock once. A lock that can wait by itself waits for `wait`. `None` means that
    /// the lock was not granted or that the request failed; users ask again in both cases.
    async fn attempt(
        &self,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Option<Box<dyn ControlHold>>;
}

/// A lock that was granted.
#[async_trait]
pub(in crate::chaos) trait ControlHold: Send + Sync {
    /// Tells whether the documentation of the control lets its user believe that the lock is still
    /// held. After the first `false`, every later answer is `false` as well.
    fn is_believed(&self) -> bool;

    /// Asks for more time, if the documentation of the control shows how.
    async fn extend(&mut self, _ttl: Duration) {}

    /// Releases the lock. Users release at the end of their work even if they no longer believe
    /// that they hold the lock.
    async fn release(self: Box<Self>);
}

/// Converts a time to whole milliseconds, the unit of the servers.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
