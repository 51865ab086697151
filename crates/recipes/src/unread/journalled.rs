//! Counters over any store: with a lock, and without.

use std::time::Duration;

use async_trait::async_trait;
use distlock_core::{Locker, Result, Store};

use super::{
    counter::{Change, Counter, Unread, UnreadCounters},
    journal::Journal,
};

/// Each change under the user's lock. Where many change one user's counters, they wait in line
/// instead of trying again.
#[derive(Clone, Debug)]
pub struct LockedCounters {
    locker: Locker,
    ttl: Option<Duration>,
    journal: Journal,
}

/// Each change by compare and swap. May be used beside [`LockedCounters`], on the same counters.
#[derive(Clone, Debug)]
pub struct OptimisticCounters {
    journal: Journal,
}

impl LockedCounters {
    /// Over this store.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        Self {
            locker: store.locker(),
            ttl: None,
            journal: Journal::new(store.records(), store.clock(), "lock"),
        }
    }

    /// For how long a user's counters stay as they are when somebody dies who was changing them;
    /// the store's own default unless it is set.
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
        // The journal's token refuses whoever holds a lock that was lost, so its end is no failure.
        let _ = guard.release().await;
        changed
    }
}

impl OptimisticCounters {
    /// Over this store.
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
