//! The lock table, a synchronous state machine.
//!
//! This module owns all locks of a store in memory. Invariant: each call passes the time in and no
//! method waits, so the same sequence of calls has always the same result. A method must never lock
//! two shards at once, and must never run a waker under a shard's mutex.

use std::{collections::BTreeMap, hash::BuildHasher as _, sync::Arc, task::Waker, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Clock, Error, ErrorKind, FencingToken, Forced, HolderInfo, Lease,
    LockInfo, LockName, LossReason, Moment, ReleaseOutcome, Renewal, Result, micros,
    sync::{Mutex, MutexGuard},
    unix_time,
};
use foldhash::fast::RandomState;

use crate::{
    HeldLock,
    row::Row,
    row_counts::RowCounts,
    shard::Shard,
    store_queue::{DeferredWakes, QueueEntry, StoreQueue},
};

/// Number of shards: a power of two, large enough that threads with different names rarely wait for
/// one mutex.
const SHARDS: usize = 64;

/// The time at which a call to the table happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The boot-time clock, on which leases are counted.
    pub boot: Moment,
    /// The wall clock in microseconds since 1970. New tokens are not below this number, and people
    /// see this time.
    pub wall_micros: u64,
}

impl Now {
    /// Reads both clocks.
    pub fn of(clock: &dyn Clock) -> Self {
        Self {
            boot: clock.now(),
            wall_micros: micros(unix_time(clock)),
        }
    }
}

/// All locks of a store, with their holders and contenders.
///
/// Names are spread over shards. Each shard has its own mutex, which is locked for one operation on
/// one name (or, in a listing, for one shard at a time). A release removes the row at once. An
/// expired row counts as free, and stays in memory until its shard removes all expired rows. The
/// removal is due when the number of rows has doubled since the last removal, so each grant pays a
/// constant average cost.
///
/// The token of a grant is `max(last + 1, wall clock in microseconds)`, where `last` is the highest
/// token of the shard so far, granted or raised. So the tokens of a name rise although a released
/// name has no row.
///
/// Contenders wait in a store queue (see [`Table::join`]). While contenders wait, a free lock is
/// reserved for the first of them.
#[derive(Debug)]
pub struct Table {
    // No change of a shard can panic halfway, so a shard is always whole.
    shards: Box<[Mutex<Shard>]>,
    counts: Arc<RowCounts>,
    hasher: RandomState,
}

/// The next step of a wait; see [`Table::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Make an attempt now.
    Ask,
    /// Sleep for this time, unless a wake-up comes earlier. Then call [`Table::arm`] again.
    Sleep(Duration),
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        let hasher = RandomState::default();
        let counts = Arc::new(RowCounts::new(SHARDS));
        let shard = |at| Mutex::new(Shard::new(hasher.clone(), Arc::clone(&counts), at));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            counts,
            hasher,
        }
    }

    /// Makes one attempt. The attempt takes a free or expired lock. If the owner already holds the
    /// lock, its lease starts again and the token stays. A successful attempt with a queue entry
    /// removes the entry.
    ///
    /// `Busy(None)`: the lock is free, and it is reserved for another contender.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when no higher token exists; also, with
    /// [`is_retryable`](Error::is_retryable), when the table has [as many rows as it
    /// may](Self::limit_rows).
    pub fn try_acquire(
        &self,
        now: Now,
        request: &AcquireRequest,
        entry: Option<QueueEntry>,
    ) -> Result<Attempt<FencingToken>> {
        match self.attempt(now, request, entry) {
            // The table is full, and may have rows that have expired.
            Err(error) if error.is_retryable() && self.counts.begin_sweep(now.boot) => {
                for shard in &self.shards {
                    shard.lock().remove_expired(now.boot);
                }
                self.attempt(now, request, entry)
            }
            attempt => attempt,
        }
    }

    fn attempt(
        &self,
        now: Now,
        request: &AcquireRequest,
        entry: Option<QueueEntry>,
    ) -> Result<Attempt<FencingToken>> {
        let mut deferred = DeferredWakes::default();
        let mut shard = self.lock_shard_of(&request.name);
        let shard = &mut *shard;
        if shard.rows.len() >= shard.sweep_at {
            shard.remove_expired(now.boot);
        }
        let full = shard.is_full();
        let token = match shard.rows.get_mut(&request.name) {
            Some(row) if row.is_live(now.boot) => {
                if !row.is_owned_by(request.owner) {
                    let info = row.holder_info(now.boot);
                    if let Some(entry) = entry {
                        shard.with_queue(&request.name, |queue| queue.mark_present(entry));
                    }
                    return Ok(Attempt::Busy(Some(info)));
                }
                row.restart_lease(now.boot, request.ttl);
                row.token()
            }
            expired => {
                let expired = u64::from(expired.is_some());
                if let (Some(most), 0) = (full, expired) {
                    return Err(too_many(most));
                }
                if let Some(queue) = shard.queues.get_mut(&request.name) {
                    if let Some(entry) = entry {
                        queue.mark_present(entry);
                    }
                    let turn = queue.give_turn(now.boot, entry, &mut deferred);
                    if turn.is_some() && turn != entry {
                        return Ok(Attempt::Busy(None));
                    }
                    queue.end_turn();
                }
                let token = FencingToken::hybrid(shard.last_token, now.wall_micros)?;
                shard.last_token = token.get();
                shard.expired += expired;
                shard
                    .rows
                    .insert(&request.name, Row::new(now, token, request));
                token
            }
        };
        shard.count_rows();
        if let Some(entry) = entry {
            shard.with_queue(&request.name, |queue| queue.leave(entry, &mut deferred));
        }
        Ok(Attempt::Acquired(token))
    }

    /// Renews a lease that holds its lock and has not expired. Returns the token of the lock, which
    /// a [floor](Renewal::token_floor) may have raised.
    ///
    /// # Errors
    /// The reason of the loss.
    pub fn renew(
        &self,
        now: Moment,
        lease: &Lease,
        renewal: &Renewal,
    ) -> Result<FencingToken, LossReason> {
        let mut shard = self.lock_shard_of(&lease.name);
        let shard = &mut *shard;
        let Some(row) = shard.rows.get_mut(&lease.name) else {
            return Err(shard.loss_reason_without_row(lease));
        };
        row.check(now, lease)?;
        row.renew(now, renewal);
        // The counter outlives the row, so the next grant is above a raised token, also after a
        // release or an expiry.
        shard.last_token = shard.last_token.max(row.token().get());
        Ok(row.token())
    }

    /// Checks that this lease holds its lock.
    ///
    /// # Errors
    /// The reason of the loss.
    pub fn check(&self, now: Moment, lease: &Lease) -> Result<(), LossReason> {
        let shard = self.lock_shard_of(&lease.name);
        match shard.rows.get(&lease.name) {
            Some(row) => row.check(now, lease),
            None => Err(shard.loss_reason_without_row(lease)),
        }
    }

    /// Frees the lock if this lease still holds it. Then the lock is reserved for the first
    /// contender that is not skipped, and that contender is woken.
    pub fn release(&self, now: Moment, lease: &Lease) -> ReleaseOutcome {
        let mut deferred = DeferredWakes::default();
        let mut shard = self.lock_shard_of(&lease.name);
        match shard.rows.get(&lease.name) {
            Some(row) if row.check(now, lease).is_ok() => {}
            _ => return ReleaseOutcome::NotHeld,
        }
        let anybody = shard.free_and_give_turn(&lease.name, now, &mut deferred);
        ReleaseOutcome::Released {
            others_waiting: Some(anybody),
        }
    }

    /// Passes a lock that this lease holds to the next owner, with a higher token. The inner error
    /// is the reason of the loss.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when no higher token exists.
    pub fn hand_over(
        &self,
        now: Now,
        lease: &Lease,
        next: &AcquireRequest,
    ) -> Result<Result<FencingToken, LossReason>> {
        let mut deferred = DeferredWakes::default();
        let mut shard = self.lock_shard_of(&lease.name);
        let shard = &mut *shard;
        let Some(row) = shard.rows.get_mut(&lease.name) else {
            return Ok(Err(shard.loss_reason_without_row(lease)));
        };
        if let Err(reason) = row.check(now.boot, lease) {
            return Ok(Err(reason));
        }
        let token = FencingToken::hybrid(shard.last_token, now.wall_micros)?;
        shard.last_token = token.get();
        *row = Row::new(now, token, next);
        if let Some(queue) = shard.queues.get_mut(&lease.name) {
            queue.wake_owner(next.owner, &mut deferred);
        }
        Ok(Ok(token))
    }

    /// Frees a lock, whoever holds it, if its token is the expected one.
    pub fn force_release(&self, now: Moment, name: &LockName, expected: FencingToken) -> Forced {
        let mut deferred = DeferredWakes::default();
        let mut shard = self.lock_shard_of(name);
        match shard.rows.get(name) {
            Some(row) if row.is_live(now) && row.token() == expected => {}
            Some(row) if row.is_live(now) => return Forced::OtherToken(row.token()),
            _ => return Forced::NotHeld,
        }
        shard.free_and_give_turn(name, now, &mut deferred);
        shard.remember_forced(name, expected);
        Forced::Released
    }

    /// Reads the holder of a lock and its contenders that are not skipped.
    pub fn inspect(&self, now: Moment, name: &LockName) -> LockInfo {
        let shard = self.lock_shard_of(name);
        let mut info = match shard.rows.get(name) {
            Some(row) if row.is_live(now) => LockInfo::held(name.clone(), row.holder_info(now)),
            Some(expired) => {
                let mut info = LockInfo::free(name.clone());
                info.last_token = Some(expired.token());
                info
            }
            None => LockInfo::free(name.clone()),
        };
        info.waiters = Some(shard.waiter_count(name));
        let queue = shard.queues.get(name);
        info.queue = queue.map_or_else(Vec::new, StoreQueue::first_present);
        info
    }

    /// Lists held locks by prefix, in byte order of their names. The listing visits every row, so
    /// it is meant for people and repair tools.
    pub fn list(
        &self,
        now: Moment,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> Vec<LockInfo> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut first: BTreeMap<LockName, (HolderInfo, u32)> = BTreeMap::new();
        for shard in &self.shards {
            let shard = shard.lock();
            for (name, row) in shard.rows.iter() {
                let wanted = name.as_str().starts_with(prefix)
                    && after.is_none_or(|after| name > after)
                    && row.is_live(now)
                    && (first.len() < limit
                        || first.last_key_value().is_some_and(|(last, _)| name < last));
                if wanted {
                    first.insert(
                        name.clone(),
                        (row.holder_info(now), shard.waiter_count(name)),
                    );
                    if first.len() > limit {
                        first.pop_last();
                    }
                }
            }
        }
        first
            .into_iter()
            .map(|(name, (holder, waiters))| {
                let mut info = LockInfo::held(name, holder);
                info.waiters = Some(waiters);
                info
            })
            .collect()
    }

    /// Returns all held locks, and the highest token so far, for [`Table::restore`] and
    /// [`Table::raise_tokens`] of a later table.
    pub fn export(&self, now: Moment) -> (Vec<HeldLock>, u64) {
        let (mut held, mut last_token) = (Vec::new(), 0);
        for shard in &self.shards {
            let shard = shard.lock();
            last_token = last_token.max(shard.last_token);
            let live = shard.rows.iter().filter(|(_, row)| row.is_live(now));
            held.extend(live.map(|(name, row)| row.held_lock(name)));
        }
        (held, last_token)
    }

    /// Puts a lock back that an earlier table of the same server has granted. If the lock is held
    /// with a token that is not lower, nothing changes: that grant came later, or it is this one.
    ///
    /// # Errors
    /// [`LossReason::TakenOver`] if another owner holds the lock with a token that is not lower.
    pub fn restore(&self, now: Moment, held: &HeldLock) -> Result<(), LossReason> {
        let mut shard = self.lock_shard_of(&held.name);
        let shard = &mut *shard;
        if let Some(row) = shard.rows.get(&held.name)
            && row.is_live(now)
            && row.token() >= held.token
        {
            return if row.is_owned_by(held.owner) {
                Ok(())
            } else {
                Err(LossReason::TakenOver)
            };
        }
        shard.rows.insert(&held.name, Row::restored(held));
        shard.count_rows();
        shard.last_token = shard.last_token.max(held.token.get());
        if let Some(queue) = shard.queues.get_mut(&held.name) {
            queue.end_turn();
        }
        Ok(())
    }

    /// Makes all later tokens higher than this one.
    pub fn raise_tokens(&self, floor: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.last_token = shard.last_token.max(floor);
        }
    }

    /// Returns the number of rows in memory, including expired rows that are not removed yet.
    pub fn rows(&self) -> usize {
        self.counts.all()
    }

    /// Sets the most rows: a new row beyond them is refused. While a table with more than a hundred
    /// rows is filled, it may exceed this number by a few.
    pub fn limit_rows(&self, most: usize) {
        self.counts.set_most(most);
    }

    /// Returns how many leases have expired so far. An expired lease counts when its row is removed
    /// or replaced.
    pub fn expired(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().expired).sum()
    }

    /// Adds an entry for the owner of this request to the store queue of its lock.
    pub fn join(&self, request: &AcquireRequest) -> QueueEntry {
        let name = &request.name;
        let mut shard = self.lock_shard_of(name);
        let shard = &mut *shard;
        shard.last_entry += 1;
        let entry = QueueEntry::new(shard.last_entry);
        shard
            .queues
            .entry(name.clone())
            .or_insert_with(|| std::mem::take(&mut shard.spare))
            .join(entry, request);
        entry
    }

    /// Removes a queue entry. If the lock was reserved for this entry, the next contender gets the
    /// turn. A second call with the same entry changes nothing.
    pub fn leave(&self, now: Moment, name: &LockName, entry: QueueEntry) {
        self.depart_and_give_turn(now, name, StoreQueue::leave, entry);
    }

    /// Records that a contender dropped its wait. The contender is skipped until its next call. If
    /// a free lock was reserved for this contender, the next contender gets the turn. A wake-up
    /// that the contender has not taken stays pending for the contender's next wait.
    pub fn interrupt_wait(&self, now: Moment, name: &LockName, entry: QueueEntry) {
        self.depart_and_give_turn(now, name, StoreQueue::mark_skipped, entry);
    }

    /// Starts or continues the wait of a contender. The answer says whether the contender makes an
    /// attempt now, or sleeps and then calls this method again.
    pub fn arm(&self, now: Moment, name: &LockName, entry: QueueEntry) -> Armed {
        let mut deferred = DeferredWakes::default();
        let mut shard = self.lock_shard_of(name);
        let held_for = shard
            .rows
            .get(name)
            .filter(|row| row.is_live(now))
            .map(|row| row.remaining(now));
        let Some(queue) = shard.queues.get_mut(name) else {
            return Armed::Ask;
        };
        let woken = queue.mark_waiting(entry);
        match held_for {
            _ if woken => {
                queue.mark_present(entry);
                Armed::Ask
            }
            Some(left) => Armed::Sleep(left.min(queue.longest_sleep(entry))),
            None => {
                let turn = queue.give_turn(now, Some(entry), &mut deferred);
                match queue.reservation_left(now) {
                    Some(left) if turn != Some(entry) => Armed::Sleep(left),
                    _ => {
                        queue.mark_present(entry);
                        Armed::Ask
                    }
                }
            }
        }
    }

    /// Takes a pending wake-up, or stores the waker for the next one. Returns `true` if a wake-up
    /// was pending or the entry is no longer in the queue.
    pub fn listen(&self, name: &LockName, entry: QueueEntry, waker: &Waker) -> bool {
        let mut deferred = DeferredWakes::default();
        let mut shard = self.lock_shard_of(name);
        match shard.queues.get_mut(name) {
            Some(queue) => queue.register_waker(entry, waker, &mut deferred),
            None => true,
        }
    }

    /// Ends the turn of a contender through `depart`. If the contender had the turn and the lock is
    /// still free, the next contender gets the turn.
    fn depart_and_give_turn(
        &self,
        now: Moment,
        name: &LockName,
        depart: impl FnOnce(&mut StoreQueue, QueueEntry, &mut DeferredWakes) -> bool,
        entry: QueueEntry,
    ) {
        let mut deferred = DeferredWakes::default();
        let mut shard = self.lock_shard_of(name);
        let free = !shard.rows.get(name).is_some_and(|row| row.is_live(now));
        shard.with_queue(name, |queue| {
            if depart(queue, entry, &mut deferred) && free {
                queue.give_turn(now, None, &mut deferred);
            }
        });
    }

    /// Locks the shard of a name.
    fn lock_shard_of(&self, name: &LockName) -> MutexGuard<'_, Shard> {
        // The hash maps in a shard use the lowest and the highest bits of the same hash. The shard
        // is chosen by other bits, so that the names of one shard spread over all buckets of its
        // maps.
        let at = usize::try_from(self.hasher.hash_one(name) >> 32).unwrap_or(0) % SHARDS;
        self.shards[at].lock()
    }
}

/// The error of a row beyond the most rows.
fn too_many(most: usize) -> Error {
    let problem = format!("{most} locks are held, and no more are allowed");
    Error::new(ErrorKind::LimitExceeded, problem).passing()
}
