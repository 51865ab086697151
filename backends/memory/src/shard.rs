//! One shard of the lock table.

use std::collections::{HashMap, VecDeque};

use distlock_core::{FencingToken, Lease, LockName, LossReason, Moment};
use foldhash::fast::RandomState;

use crate::{
    row::Row,
    store_queue::{DeferredWakes, StoreQueue},
};

/// How many force-releases a shard remembers.
const FORCED_AT_MOST: usize = 64;

/// A shard with fewer rows is not worth sweeping or shrinking.
const SMALL: usize = 256;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) rows: HashMap<LockName, Row, RandomState>,
    pub(crate) queues: HashMap<LockName, StoreQueue, RandomState>,
    /// An emptied line, for the next one who needs one.
    pub(crate) spare: StoreQueue,
    pub(crate) last_token: u64,
    pub(crate) last_entry: u64,
    pub(crate) sweep_at: usize,
    /// Tokens of the leases that were ended by force last, so that their holders learn why. They
    /// are unique within a shard.
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
        // Bounded: few locks are forced, and a holder asks at its next renewal.
        if self.forced.len() == FORCED_AT_MOST {
            self.forced.pop_front();
        }
        self.forced.push_back(token);
    }

    /// Removes a row and calls the first who waits for it. Whether anybody waits.
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

    /// Why a lease is lost of whose lock nothing is left.
    pub(crate) fn loss_of_missing_row(&self, lease: &Lease) -> LossReason {
        match lease.token {
            Some(token) if self.forced.contains(&token) => LossReason::ForceReleased,
            _ => LossReason::Removed,
        }
    }

    /// Does something with a line that may be there, and puts it away when it is empty then.
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

    /// Gives memory back after a crowd has left. What is kept is room to grow, so this is rare.
    pub(crate) fn shrink(&mut self) {
        let rows = self.rows.len().max(SMALL);
        if rows < self.rows.capacity() / 8 {
            self.rows.shrink_to(rows * 2);
        }
    }
}
