//! The crate `rslock`, over five servers and used as its readme shows: acquire, extend, release.
//!
//! The users believe in the documented `validity_time` of their lock. The example in the readme
//! prints the error of a failed extension and continues. So after a failed extension the users
//! still believe in the earlier validity.

use std::time::Duration;

use ::rslock::{Lock, LockManager};
use async_trait::async_trait;
use distlock::{Clock as _, Moment, SystemClock};

use super::kinds::{ControlHold, ControlLock};

/// The lock manager of the crate.
pub(super) struct Rslock(LockManager);

impl Rslock {
    pub(super) fn new(urls: &[&str]) -> Self {
        Self(LockManager::new(urls.to_vec()))
    }
}

#[async_trait]
impl ControlLock for Rslock {
    async fn attempt(
        &self,
        name: &str,
        ttl: Duration,
        _wait: Duration,
    ) -> Option<Box<dyn ControlHold>> {
        let lock = self.0.lock(name, ttl).await.ok()?;
        Some(Box::new(Held {
            until: validity_end(&lock),
            lock,
        }))
    }
}

/// Returns the end of the validity. The crate has already subtracted the time of its requests from
/// `validity_time`, so `validity_time` counts from now.
fn validity_end(lock: &Lock) -> Moment {
    let left = u64::try_from(lock.validity_time).unwrap_or(u64::MAX);
    SystemClock.now() + Duration::from_millis(left)
}

/// A granted lock, believed until `until`.
struct Held {
    lock: Lock,
    until: Moment,
}

#[async_trait]
impl ControlHold for Held {
    fn is_believed(&self) -> bool {
        SystemClock.now() < self.until
    }

    async fn extend(&mut self, ttl: Duration) {
        let extended = self.lock.lock_manager.extend(&self.lock, ttl).await;
        if let Ok(lock) = extended {
            self.until = validity_end(&lock);
            self.lock = lock;
        }
    }

    async fn release(self: Box<Self>) {
        self.lock.release().await;
    }
}
