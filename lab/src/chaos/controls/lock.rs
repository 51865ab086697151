//! What a control has to be able to do, so that the lab's workers can use it.

use std::time::Duration;

use async_trait::async_trait;

/// Somebody else's lock, as one process has it.
#[async_trait]
pub(in crate::chaos) trait ControlLock: Send + Sync {
    /// Asks once. A lock that can wait by itself waits for `wait`. `None` = not granted, or an
    /// error after which its users ask again.
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
    /// Whether its user has reason to believe that the lock is held. Once it is not, it never is
    /// again.
    fn is_believed(&self) -> bool;

    /// Asks for more time, where the documentation shows how.
    async fn extend(&mut self, _ttl: Duration) {}

    /// Gives it up. Users do this at the end of their work in any case, also when they do not
    /// believe to hold the lock any more.
    async fn release(self: Box<Self>);
}

/// A time in whole milliseconds, as servers take it.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
