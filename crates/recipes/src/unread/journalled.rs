//! Counters over any store, with a lock or without.
//!
//! Invariant: both kinds use the same journal, so both kinds may change the same counters at the
//! same time.

use std::time::Duration;

use async_trait::async_trait;
use distlock_core::{Locker, Result, Store};

use super::{
    counter::{Change, Counter, Unread, UnreadCounters},
    journal::Journal,
};

/// Counters that change under the user's lock. Clients that change one user's counters at the same
/// time get the lock one after the other, instead of repeating their attempts.
#[derive(Clone, Debug)]
pub struct LockedCounters {
    locker: Locker,
    ttl: Option<Duration>,
    journal: Journal,
}

/// Counters that change by compare-and-swap. [`LockedCounters`] may change the same counters at the
/// same time.
#[derive(Clone, Debug)]
pub struct OptimisticCounters {
    journal: Journal,
}

impl LockedCounters {
    /// The counters of this store.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        Self {
            locker: store.locker(),
            ttl: None,
            journal: Journal::new(store.records(), store.clock(), "lock"),
        }
    }

    /// The TTL of the lock of a user's counters. When a client dies during a change, the counters
    /// stay locked until the lease ends. The default is the store's default TTL.
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    async fn change(&self, counter: &Counter, change: Change) -> Result<Unread> {
        let mut lock = self.locker.lock(format!("unread/{}", counter.user()));
        if let Some(ttl) = self.ttl {
            lock = lock.ttl(ttl);
        }
        let guard = lock.acquire().await?;
        let token = Some(guard.token());
        let changed = self.journal.change(counter, change, token).await;
        // The result of the release is ignored. The journal has compared the token, so the change
        // is correct even if the lock was lost.
        let _ = guard.release().await;
        changed
    }
}

impl OptimisticCounters {
    /// The counters of this store.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        Self {
            journal: Journal::new(store.records(), store.clock(), "optimistic"),
        }
    }
}

#[async_trait]
impl UnreadCounters for LockedCounters {
    async fn increment(&self, counter: &Counter, by: i64) -> Result<Unread> {
        self.change(counter, Change::add(by)?).await
    }

    async fn clear(&self, counter: &Counter) -> Result<Unread> {
        self.change(counter, Change::Clear).await
    }

    async fn read(&self, counter: &Counter) -> Result<Unread> {
        self.journal.read(counter).await
    }

    fn retries(&self) -> u64 {
        self.journal.retries()
    }
}

#[async_trait]
impl UnreadCounters for OptimisticCounters {
    async fn increment(&self, counter: &Counter, by: i64) -> Result<Unread> {
        self.journal.change(counter, Change::add(by)?, None).await
    }

    async fn clear(&self, counter: &Counter) -> Result<Unread> {
        self.journal.change(counter, Change::Clear, None).await
    }

    async fn read(&self, counter: &Counter) -> Result<Unread> {
        self.journal.read(counter).await
    }

    fn retries(&self) -> u64 {
        self.journal.retries()
    }
}
