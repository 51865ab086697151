//! One shard of the lock table: its rows, store queues and counters.
//!
//! Invariant: tokens and queue entries of a shard rise strictly, also for names that were released
//! and forgotten, because one counter serves all names of the shard.

use std::collections::{HashMap, VecDeque};

use distlock_core::{FencingToken, Lease, LockName, LossReason, Moment};
use foldhash::fast::RandomState;

use crate::{
    row::Row,
    store_queue::{DeferredWakes, StoreQueue},
};

/// Number of forced releases that a shard remembers.
const FORCED_AT_MOST: usize = 64;

/// A shard with fewer rows is not swept. It shrinks as if it had this many, so a small map keeps
/// its memory.
const SMALL: usize = 256;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) rows: HashMap<LockName, Row, RandomState>,
    pub(crate) queues: HashMap<LockName, StoreQueue, RandomState>,
    /// An empty queue, reused for the next lock that gets contenders.
    pub(crate) spare: StoreQueue,
    pub(crate) last_token: u64,
    pub(crate) last_entry: u64,
    pub(crate) sweep_at: usize,
    /// The tokens of the latest force-released leases, so that their holders learn the reason.
    /// Tokens are unique within a shard.
    pub(crate) forced: VecDeque<FencingToken>,
}

impl Shard {
    /// An empty shard.
    pub(crate) fn new(hasher: RandomState) -> Self {
        Self {
            rows: HashMap::with_hasher(hasher.clone()),
            queues: HashMap::with_hasher(hasher),
            spare: StoreQueue::default(),
            last_token: 0,
            last_entry: 0,
            sweep_at: SMALL,
            forced: VecDeque::new(),
        }
    }

    /// Remembers the token of a force-released lease, so that its holder learns the reason.
    pub(crate) fn remember_forced(&mut self, token: FencingToken) {
        // The list is bounded: few locks are force-released, and a holder asks at its next renewal.
        if self.forced.len() == FORCED_AT_MOST {
            self.forced.pop_front();
        }
        self.forced.push_back(token);
    }

    /// Removes a row and gives the turn to the first contender that is not away. Returns whether
    /// there is one.
    pub(crate) fn free_and_call_next(
        &mut self,
        name: &LockName,
        now: Moment,
        deferred: &mut DeferredWakes,
    ) -> bool {
        self.rows.remove(name);
        self.shrink();
        !self.queues.is_empty()
            && self
                .queues
                .get_mut(name)
                .is_some_and(|queue| queue.call_next(now, None, deferred).is_some())
    }

    /// The reason of the loss of a lease without a row.
    pub(crate) fn loss_of_missing_row(&self, lease: &Lease) -> LossReason {
        match lease.token {
            Some(token) if self.forced.contains(&token) => LossReason::ForceReleased,
            _ => LossReason::Removed,
        }
    }

    /// Runs `f` on the queue of a name, if there is one, and recycles the queue when it is empty
    /// afterwards.
    pub(crate) fn with_queue<T>(
        &mut self,
        name: &LockName,
        f: impl FnOnce(&mut StoreQueue) -> T,
    ) -> Option<T> {
        let queue = self.queues.get_mut(name)?;
        let value = f(queue);
        if queue.is_empty() {
            self.spare = self.queues.remove(name).unwrap_or_default().cleared();
        }
        Some(value)
    }

    pub(crate) fn waiters(&self, name: &LockName) -> u32 {
        let waiters = self.queues.get(name).map_or(0, StoreQueue::len);
        u32::try_from(waiters).unwrap_or(u32::MAX)
    }

    pub(crate) fn sweep(&mut self, now: Moment) {
        self.rows.retain(|_, row| row.is_live(now));
        self.sweep_at = (self.rows.len() * 2).max(SMALL);
        self.shrink();
    }

    /// Returns memory to the allocator after many rows were removed. It leaves room to grow, so it
    /// happens rarely.
    pub(crate) fn shrink(&mut self) {
        let rows = self.rows.len().max(SMALL);
        if rows < self.rows.capacity() / 8 {
            self.rows.shrink_to(rows * 2);
        }
    }
}
