//! Another library, `rslock`, with one server. The library opens its own connection.

use std::time::Duration;

use ::rslock::{LockError, LockGuard, LockManager};
use distlock_report::Subject;

/// The locks of `rslock`, which have no fencing token and no renewal.
#[derive(Debug)]
pub(crate) struct Rslock(LockManager);

impl Rslock {
    pub(crate) fn connect(url: &str) -> ::redis::RedisResult<Self> {
        let mut manager = LockManager::from_clients(vec![::redis::Client::open(url)?]);
        // Between two polls, `rslock` pauses for a random time below this limit.
        manager.set_retry(3, Duration::from_millis(5));
        Ok(Self(manager))
    }
}

impl Subject for Rslock {
    type Held = LockGuard;
    type Error = LockError;

    async fn acquire(&self, name: &str) -> Result<LockGuard, LockError> {
        self.0.acquire(name, Duration::from_secs(10)).await
    }

    async fn release(&self, guard: LockGuard) -> Result<(), LockError> {
        guard.release().await;
        Ok(())
    }
}
