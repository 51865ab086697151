//! The lock table: a synchronous state machine. The time comes in with each call and nothing here waits, so a history of
//! calls has one outcome.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, hash_map},
    hash::BuildHasher as _,
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Duration,
};

use distlock_core::{
    AcquireRequest, Attempt, Clock, Error, ErrorKind, FencingToken, Forced, HolderInfo, Lease,
    LockInfo, LockName, LossReason, Moment, OwnerId, ReleaseOutcome, Renewal, Result, micros,
    unix_time,
};
use foldhash::fast::RandomState;

use crate::{
    line::{Later, Line, Place},
    row::Row,
};

/// A power of two, so that threads that want different names seldom meet.
const SHARDS: usize = 64;

/// How many force-releases a shard remembers.
const FORCED_AT_MOST: usize = 64;

/// A shard with fewer rows is not worth sweeping or shrinking.
const SMALL: usize = 256;

/// The time of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Leases are counted on this clock.
    pub boot: Moment,
    /// Wall clock, microseconds since 1970: the floor of new tokens, and what people see.
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

/// Who holds what, and who waits for it.
///
/// Names are spread over shards; each has its own mutex, which is held for one operation on one name (or one shard of a
/// listing). A released row is gone at once. An expired row counts as free; its memory is reclaimed by a sweep of its shard,
/// due whenever the shard has doubled since the last one, so a grant pays for it in constant time on average.
///
/// Tokens come from a counter per shard and the wall clock, `max(last + 1, microseconds)`. They keep rising although nothing
/// is remembered of a name that was released.
///
/// Those who wait stand in line (see [`Table::join`]). While somebody waits, a free lock is kept for the first of them.
#[derive(Debug)]
pub struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Shard {
    rows: HashMap<LockName, Row, RandomState>,
    lines: HashMap<LockName, Line, RandomState>,
    /// An emptied line, for the next one who needs one.
    spare: Line,
    last_token: u64,
    last_place: u64,
    sweep_at: usize,
    /// Tokens of the leases that were ended by force last, so that their holders learn why. They
    /// are unique within a shard.
    forced: VecDeque<FencingToken>,
}

/// Whether to ask for a lock or to go on waiting; see [`Table::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Ask now.
    Ask,
    /// Nothing will change for so long, unless a wake-up comes.
    Sleep(Duration),
}

impl Default for Table {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        let hasher = RandomState::default();
        let shard = || {
            Mutex::new(Shard {
                rows: HashMap::with_hasher(hasher.clone()),
                lines: HashMap::with_hasher(hasher.clone()),
                spare: Line::default(),
                last_token: 0,
                last_place: 0,
                sweep_at: SMALL,
                forced: VecDeque::new(),
            })
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher,
        }
    }

    /// One attempt. It takes a free or expired lock, and re-arms one that its owner holds, whose token stays. With a place
    /// in line, success gives the place up.
    ///
    /// `Busy(None)` = the lock is free and kept for somebody who waited longer.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] when the tokens are used up.
    pub fn try_acquire(
        &self,
        now: Now,
        request: &AcquireRequest,
        place: Option<Place>,
    ) -> Result<Attempt<FencingToken>> {
        let mut later = Later::default();
        let mut shard = self.shard(&request.name);
        let shard = &mut *shard;
        if shard.rows.len() >= shard.sweep_at {
            shard.sweep(now.boot);
        }
        let token = match shard.rows.entry(request.name.clone()) {
            hash_map::Entry::Occupied(mut row) if row.get().is_live(now.boot) => {
                let row = row.get_mut();
                if !row.is_of(request.owner) {
                    let info = row.info(now.boot);
                    if let Some(place) = place {
                        shard.with_line(&request.name, |line| line.present(place));
                    }
                    return Ok(Attempt::Busy(Some(info)));
                }
                row.rearm(now.boot, request.ttl);
                row.token()
            }
            entry => {
                if let Some(line) = shard.lines.get_mut(&request.name) {
                    if let Some(place) = place {
                        line.present(place);
                    }
                    let turn = line.turn(now.boot, place, &mut later);
                    if turn.is_some() && turn != place {
                        return Ok(Attempt::Busy(None));
                    }
                    line.taken();
                }
                let token = FencingToken::hybrid(shard.last_token, now.wall_micros)?;
                shard.last_token = token.get();
                entry.insert_entry(Row::new(now, token, request));
                token
            }
        };
        if let Some(place) = place {
            shard.with_line(&request.name, |line| line.leave(place, &mut later));
        }
        Ok(Attempt::Acquired(token))
    }

    /// Renews a lease that holds its lock and has not expired. The token that stands beside the lock, or why not.
    ///
    /// # Errors
    /// What became of the lock.
    pub fn renew(
        &self,
        now: Moment,
        lease: &Lease,
        renewal: &Renewal,
    ) -> Result<FencingToken, LossReason> {
        let mut shard = self.shard(&lease.name);
        let shard = &mut *shard;
        let Some(row) = shard.rows.get_mut(&lease.name) else {
            return Err(shard.why_gone(lease));
        };
        row.check(now, lease)?;
        row.renew(now, renewal)?;
        Ok(row.token())
    }

    /// Frees a lock that this lease holds, and calls the first who waits for it.
    pub fn release(&self, now: Moment, lease: &Lease) -> ReleaseOutcome {
        let mut later = Later::default();
        let mut shard = self.shard(&lease.name);
        match shard.rows.get(&lease.name) {
            Some(row) if row.check(now, lease).is_ok() => {}
            _ => return ReleaseOutcome::NotHeld,
        }
        let anybody = shard.free(&lease.name, now, &mut later);
        ReleaseOutcome::Released {
            others_waiting: Some(anybody),
        }
    }

    /// Gives a lock that this lease holds to the next owner, with a higher token. The inner error is what became of the lock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the two are not about one name; [`ErrorKind::LimitExceeded`] when the tokens are
    /// used up.
    pub fn hand_over(
        &self,
        now: Now,
        lease: &Lease,
        next: &AcquireRequest,
    ) -> Result<Result<FencingToken, LossReason>> {
        if lease.name != next.name {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "lock {:?} cannot be handed over as {:?}",
                    lease.name, next.name
                ),
            ));
        }
        let mut later = Later::default();
        let mut shard = self.shard(&lease.name);
        let shard = &mut *shard;
        let Some(row) = shard.rows.get_mut(&lease.name) else {
            return Ok(Err(shard.why_gone(lease)));
        };
        if let Err(reason) = row.check(now.boot, lease) {
            return Ok(Err(reason));
        }
        let token = FencingToken::hybrid(shard.last_token, now.wall_micros)?;
        shard.last_token = token.get();
        *row = Row::new(now, token, next);
        if let Some(line) = shard.lines.get_mut(&lease.name) {
            line.given_to(next.owner, &mut later);
        }
        Ok(Ok(token))
    }

    /// Frees a lock whoever holds it, if its token is the expected one.
    pub fn force_release(&self, now: Moment, name: &LockName, expected: FencingToken) -> Forced {
        let mut later = Later::default();
        let mut shard = self.shard(name);
        match shard.rows.get(name) {
            Some(row) if row.is_live(now) && row.token() == expected => {}
            Some(row) if row.is_live(now) => return Forced::OtherToken(row.token()),
            _ => return Forced::NotHeld,
        }
        shard.free(name, now, &mut later);
        // Bounded: few locks are forced, and a holder asks at its next renewal.
        if shard.forced.len() == FORCED_AT_MOST {
            shard.forced.pop_front();
        }
        shard.forced.push_back(expected);
        Forced::Released
    }

    /// Who holds a lock, and how many wait for it.
    pub fn inspect(&self, now: Moment, name: &LockName) -> LockInfo {
        let shard = self.shard(name);
        let mut info = match shard.rows.get(name) {
            Some(row) if row.is_live(now) => LockInfo::held(name.clone(), row.info(now)),
            Some(expired) => {
                let mut info = LockInfo::free(name.clone());
                info.last_token = Some(expired.token());
                info
            }
            None => LockInfo::free(name.clone()),
        };
        info.waiters = Some(shard.waiters(name));
        info
    }

    /// Held locks by prefix, in byte order of their names. Looks at every row: it is for people and repair tools.
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
            let shard = lock(shard);
            for (name, row) in &shard.rows {
                let wanted = name.as_str().starts_with(prefix)
                    && after.is_none_or(|after| name > after)
                    && row.is_live(now)
                    && (first.len() < limit
                        || first.last_key_value().is_some_and(|(last, _)| name < last));
                if wanted {
                    first.insert(name.clone(), (row.info(now), shard.waiters(name)));
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

    /// How many rows are in memory, expired ones that no sweep has met included.
    pub fn rows(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).rows.len()).sum()
    }

    /// Joins the line of those who wait for a lock.
    pub fn join(&self, name: &LockName, owner: OwnerId) -> Place {
        let mut shard = self.shard(name);
        let shard = &mut *shard;
        shard.last_place += 1;
        let place = Place::new(shard.last_place);
        shard
            .lines
            .entry(name.clone())
            .or_insert_with(|| std::mem::take(&mut shard.spare))
            .join(place, owner);
        place
    }

    /// Gives up a place in line. If the lock was being kept for it, the next one is called. Idempotent.
    pub fn leave(&self, now: Moment, name: &LockName, place: Place) {
        self.departs(now, name, Line::leave, place);
    }

    /// A caller that waited here is gone without a word: it is passed over until it comes back, and a wake-up that it has
    /// not taken is kept for it.
    pub fn step_out(&self, now: Moment, name: &LockName, place: Place) {
        self.departs(now, name, Line::step_out, place);
    }

    /// Starts or goes on waiting at a place: whether to ask now, and if not, until when nothing will change by itself.
    pub fn arm(&self, now: Moment, name: &LockName, place: Place) -> Armed {
        let mut later = Later::default();
        let mut shard = self.shard(name);
        let held_for = shard
            .rows
            .get(name)
            .filter(|row| row.is_live(now))
            .map(|row| row.remaining(now));
        let Some(line) = shard.lines.get_mut(name) else {
            return Armed::Ask;
        };
        let woken = line.is_woken(place);
        match held_for {
            _ if woken => {
                line.present(place);
                Armed::Ask
            }
            Some(left) => Armed::Sleep(left),
            None => {
                let turn = line.turn(now, Some(place), &mut later);
                match line.kept_for(now) {
                    Some(left) if turn != Some(place) => Armed::Sleep(left),
                    _ => {
                        line.present(place);
                        Armed::Ask
                    }
                }
            }
        }
    }

    /// Takes a wake-up, or leaves word whom to wake. `true` = woken.
    pub fn listen(&self, name: &LockName, place: Place, waker: &Waker) -> bool {
        let mut later = Later::default();
        let mut shard = self.shard(name);
        match shard.lines.get_mut(name) {
            Some(line) => line.listen(place, waker, &mut later),
            None => true,
        }
    }

    fn departs(
        &self,
        now: Moment,
        name: &LockName,
        how: impl FnOnce(&mut Line, Place, &mut Later) -> bool,
        place: Place,
    ) {
        // Two, because the one who goes leaves a waker behind while the next one is woken.
        let (mut gone, mut next) = (Later::default(), Later::default());
        let mut shard = self.shard(name);
        let free = !shard.rows.get(name).is_some_and(|row| row.is_live(now));
        shard.with_line(name, |line| {
            if how(line, place, &mut gone) && free {
                line.turn(now, None, &mut next);
            }
        });
    }

    fn shard(&self, name: &LockName) -> MutexGuard<'_, Shard> {
        // Bits that the maps inside do not use: they take the lowest and the highest.
        let at = usize::try_from(self.hasher.hash_one(name) >> 32).unwrap_or(0) % SHARDS;
        lock(&self.shards[at])
    }
}

impl Shard {
    /// Removes a row and calls the first who waits for it. Whether anybody waits.
    fn free(&mut self, name: &LockName, now: Moment, later: &mut Later) -> bool {
        self.rows.remove(name);
        self.shrink();
        !self.lines.is_empty()
            && self
                .lines
                .get_mut(name)
                .is_some_and(|line| line.turn(now, None, later).is_some())
    }

    /// Why a lease is lost of whose lock nothing is left.
    fn why_gone(&self, lease: &Lease) -> LossReason {
        match lease.token {
            Some(token) if self.forced.contains(&token) => LossReason::ForceReleased,
            _ => LossReason::Removed,
        }
    }

    /// Does something with a line that may be there, and puts it away when it is empty then.
    fn with_line<T>(&mut self, name: &LockName, f: impl FnOnce(&mut Line) -> T) -> Option<T> {
        let line = self.lines.get_mut(name)?;
        let value = f(line);
        if line.is_empty() {
            self.spare = self.lines.remove(name).unwrap_or_default().emptied();
        }
        Some(value)
    }

    fn waiters(&self, name: &LockName) -> u32 {
        let waiters = self.lines.get(name).map_or(0, Line::len);
        u32::try_from(waiters).unwrap_or(u32::MAX)
    }

    fn sweep(&mut self, now: Moment) {
        self.rows.retain(|_, row| row.is_live(now));
        self.sweep_at = (self.rows.len() * 2).max(SMALL);
        self.shrink();
    }

    /// Gives memory back after a crowd has left. What is kept is room to grow, so this is rare.
    fn shrink(&mut self) {
        let rows = self.rows.len().max(SMALL);
        if rows < self.rows.capacity() / 8 {
            self.rows.shrink_to(rows * 2);
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Every change of a shard is complete before anything in it can panic.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
