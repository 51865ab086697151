//! One shard of the lock table: its rows, store queues and counters.
//!
//! Invariant: the tokens and the queue entries of a shard rise strictly, even for a name that was
//! released and has no row any more, because one counter serves all names of the shard.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use distlock_core::{FencingToken, Lease, LockName, LossReason, Moment};
use foldhash::fast::RandomState;

use crate::{
    row_counts::RowCounts,
    rows::Rows,
    store_queue::{DeferredWakes, StoreQueue},
};

/// The number of force-released leases that a shard remembers.
const MAX_REMEMBERED_FORCED: usize = 64;

/// A shard with fewer rows than this keeps its expired rows. A shard that shrinks keeps memory for
/// at least this many rows.
const SMALL_ROW_COUNT: usize = 256;

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) rows: Rows,
    pub(crate) queues: HashMap<LockName, StoreQueue, RandomState>,
    /// An empty queue. The next lock that gets contenders reuses its memory.
    pub(crate) spare: StoreQueue,
    /// The highest token of this shard: of a grant, or of a renewal that has raised its token.
    pub(crate) last_token: u64,
    /// The number of the latest queue entry.
    pub(crate) last_entry: u64,
    /// The row count at which the next attempt removes the expired rows.
    pub(crate) sweep_at: usize,
    /// The names and tokens of the latest force-released leases. A holder whose name and token are
    /// here gets the reason `ForceReleased`. Two locks of a shard can have the same token, because
    /// a renewal can raise a token to any number.
    pub(crate) forced: VecDeque<(LockName, FencingToken)>,
    /// The leases that have expired so far, as far as their rows were removed or replaced.
    pub(crate) expired: u64,
    /// The numbers of rows of all shards, and the place of this shard among them.
    counts: Arc<RowCounts>,
    at: usize,
}

impl Shard {
    /// Creates an empty shard at this place.
    pub(crate) fn new(hasher: RandomState, counts: Arc<RowCounts>, at: usize) -> Self {
        Self {
            rows: Rows::new(hasher.clone()),
            queues: HashMap::with_hasher(hasher),
            spare: StoreQueue::default(),
            last_token: 0,
            last_entry: 0,
            sweep_at: SMALL_ROW_COUNT,
            forced: VecDeque::new(),
            expired: 0,
            counts,
            at,
        }
    }

    /// Notes that the number of rows has changed.
    pub(crate) fn count_rows(&self) {
        self.counts.set(self.at, self.rows.len());
    }

    /// Whether the table has as many rows as it may have; `Some` with that number.
    pub(crate) fn is_full(&self) -> Option<usize> {
        self.counts.is_full(self.rows.len())
    }

    /// Stores a force-released lease, so that its holder gets the reason.
    pub(crate) fn remember_forced(&mut self, name: &LockName, token: FencingToken) {
        // A short list is enough: few locks are force-released, and each holder asks for the reason
        // at its next renewal.
        if self.forced.len() == MAX_REMEMBERED_FORCED {
            self.forced.pop_front();
        }
        self.forced.push_back((name.clone(), token));
    }

    /// Removes a row, and gives the turn to the first contender that is not skipped. Returns
    /// whether there is such a contender.
    pub(crate) fn free_and_give_turn(
        &mut self,
        name: &LockName,
        now: Moment,
        deferred: &mut DeferredWakes,
    ) -> bool {
        self.rows.remove(name);
        self.shrink_rows();
        self.count_rows();
        !self.queues.is_empty()
            && self
                .queues
                .get_mut(name)
                .is_some_and(|queue| queue.give_turn(now, None, deferred).is_some())
    }

    /// Returns the reason of the loss for a lease without a row.
    pub(crate) fn loss_reason_without_row(&self, lease: &Lease) -> LossReason {
        let is_forced = lease.token.is_some_and(|token| {
            let mut forced = self.forced.iter();
            forced.any(|(name, of_forced)| *of_forced == token && *name == lease.name)
        });
        if is_forced {
            LossReason::ForceReleased
        } else {
            LossReason::Removed
        }
    }

    /// Runs `f` on the queue of a name, if the name has one. If the queue is empty afterwards, its
    /// memory is kept for another name.
    pub(crate) fn with_queue<T>(
        &mut self,
        name: &LockName,
        f: impl FnOnce(&mut StoreQueue) -> T,
    ) -> Option<T> {
        let queue = self.queues.get_mut(name)?;
        let value = f(queue);
        if queue.is_empty() {
            self.spare = self.queues.remove(name).unwrap_or_default().into_spare();
        }
        Some(value)
    }

    /// Returns the number of contenders of a lock that are not skipped.
    pub(crate) fn waiter_count(&self, name: &LockName) -> u32 {
        let waiters = self.queues.get(name).map_or(0, StoreQueue::present_count);
        u32::try_from(waiters).unwrap_or(u32::MAX)
    }

    /// Removes all expired rows, and sets the row count at which the next removal is due.
    pub(crate) fn remove_expired(&mut self, now: Moment) {
        let before = self.rows.len();
        self.rows.retain(|row| row.is_live(now));
        self.expired += u64::try_from(before - self.rows.len()).unwrap_or(0);
        self.sweep_at = (self.rows.len() * 2).max(SMALL_ROW_COUNT);
        self.shrink_rows();
        self.count_rows();
    }

    /// Returns memory to the allocator when less than an eighth of the map's room is used. The map
    /// keeps room for twice its rows, so that the next changes neither grow nor shrink it.
    pub(crate) fn shrink_rows(&mut self) {
        let rows = self.rows.len().max(SMALL_ROW_COUNT);
        if rows < self.rows.capacity() / 8 {
            self.rows.shrink_to(rows * 2);
        }
    }
}
