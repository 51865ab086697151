//! How a caller enters: at once, or through the line.
//!
//! This module owns the steps of one acquire. Invariant: at most one caller of all processes is the
//! head of the line, and only the head looks for dead holders again and again. Whatever a caller
//! has taken when it gives up is released: its slot, its entry, its place in the line.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    Attempt, Error, ErrorKind, Fairness, Guard, LockBuilder, Moment, Remedy, Result, at_most,
};
use futures_util::future::join_all;

use super::{
    blockers::Blockers,
    guard::SharedGuard,
    hub::{Hub, Joined, REQUEST, Who},
    line::Said,
    record::{EntryId, Wish},
    seat::Seat,
    slot::{Slot, SlotNumber, slot_lock},
};

/// The lease of the line: how long a dead head keeps the others back.
const LINE_TTL: Duration = Duration::from_secs(3);

/// The pause after which the head reads the record again, whatever it hears.
const LOOK: Duration = Duration::from_millis(250);

/// The number of holders whose slots a caller tries whom they keep out.
const TRIED: usize = 16;

/// The number of slots of its own that a caller tries. The lease of a slot that was used before may
/// be in a release, or somebody looks whether its holder lives.
const OWN_SLOTS: usize = 4;

/// The pause after a failure of the store.
const PAUSE: Duration = Duration::from_millis(50);

/// What a caller asked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) wish: Wish,
    /// `None`: without end.
    pub(super) wait: Option<Duration>,
    pub(super) terms: Terms,
}

/// What the slot of a caller is taken with. Only callers with equal terms share one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) ttl: Option<Duration>,
    pub(super) label: Option<String>,
    pub(super) meta: Option<String>,
}

/// One acquire.
pub(super) struct Enter<'a> {
    hub: &'a Arc<Hub>,
    wanted: &'a Wanted,
    until: Option<Moment>,
    /// The slot that it has, until it enters.
    slot: Option<Slot>,
}

/// Enters, and waits until the others allow it or the wait ends.
pub(super) async fn acquire(hub: &Arc<Hub>, wanted: &Wanted) -> Result<SharedGuard> {
    let until = wanted.wait.map(|wait| hub.clock.now() + wait);
    let mut enter = Enter {
        hub,
        wanted,
        until,
        slot: None,
    };
    loop {
        match enter.attempt().await {
            Ok(Joined::Entered(guard)) => return Ok(guard),
            Ok(Joined::Blocked(_)) if enter.left().is_zero() => return Err(enter.busy()),
            Ok(_) => break,
            Err(error) => enter.pause_after(error).await?,
        }
    }
    loop {
        // Whoever waits in the line holds nothing else, so that a long line renews nothing else.
        enter.slot = None;
        let line = match enter.until {
            Some(_) => enter.line().wait(enter.left()),
            None => enter.line().wait_forever(),
        };
        let head = match line.acquire().await {
            Ok(line) => enter.lead(&line).await,
            Err(error) if error.kind() == ErrorKind::Timeout => return Err(enter.busy()),
            Err(error) => Err(error),
        };
        match head {
            Ok(Some(guard)) => return Ok(guard),
            // The lease of the line has ended. Somebody else may be the head.
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Timeout => return Err(error),
            Err(error) => enter.pause_after(error).await?,
        }
    }
}

/// Enters if nobody excludes the caller now.
pub(super) async fn try_acquire(hub: &Arc<Hub>, wanted: &Wanted) -> Result<Attempt<SharedGuard>> {
    let mut enter = Enter {
        hub,
        wanted,
        until: Some(hub.clock.now()),
        slot: None,
    };
    match enter.attempt().await? {
        Joined::Entered(guard) => Ok(Attempt::Acquired(guard)),
        Joined::Blocked(_) => Ok(Attempt::Busy(None)),
        Joined::Queue | Joined::Many(_) => enter.attempt_as_head().await,
    }
}

impl Enter<'_> {
    fn left(&self) -> Duration {
        let left = |until: Moment| until.since(self.hub.clock.now());
        self.until.map_or(Duration::MAX, left)
    }

    fn line(&self) -> LockBuilder {
        let capabilities = self.hub.locker.capabilities();
        let line = self.of(self.hub.locker.lock_named(&self.hub.keys.line));
        let line = line.ttl(LINE_TTL.max(capabilities.min_ttl));
        match capabilities.fairness {
            Fairness::None => line,
            // Without it, the waiting tasks of one process would hand the line on among themselves.
            _ => line.fair(),
        }
    }

    /// A builder for the slot of a holder that may be gone.
    pub(super) fn slot_of(&self, id: &EntryId) -> Result<LockBuilder> {
        Ok(self.of(self.hub.locker.lock_named(&slot_lock(&id.slot)?)))
    }

    /// The options of the caller, for one of the locks that it takes.
    fn of(&self, mut lock: LockBuilder) -> LockBuilder {
        if let Some(label) = &self.wanted.terms.label {
            lock = lock.holder(label);
        }
        if let Some(meta) = &self.wanted.terms.meta {
            lock = lock.meta(meta);
        }
        lock
    }

    /// A guard of the entry that other readers of this process have.
    fn join_readers(&self, is_head: bool) -> Option<SharedGuard> {
        let is_reader = self.wanted.wish == Wish::Read;
        is_reader.then(|| self.hub.join_readers(&self.wanted.terms, is_head))?
    }

    fn busy(&self) -> Error {
        let problem = match self.wanted.wish {
            Wish::Read => "a writer holds the lock, or somebody waits who came earlier",
            Wish::Write => "others hold the lock, or wait and came earlier",
            Wish::Permits(_) => "not enough permits are free, or somebody waits who came earlier",
        };
        Error::new(ErrorKind::Timeout, problem)
            .about(&self.hub.name)
            .with_remedy(Remedy::WaitLonger)
    }

    /// After a failure that may pass, until the wait ends.
    async fn pause_after(&self, error: Error) -> Result<()> {
        if !error.is_retryable() || self.left().is_zero() {
            return Err(error.about(&self.hub.name));
        }
        let pause = error.retry_pause().unwrap_or(PAUSE).min(self.left());
        self.hub.clock.sleep(pause).await;
        Ok(())
    }

    /// One attempt as a newcomer. If dead holders exclude it, it makes a second one without them.
    async fn attempt(&mut self) -> Result<Joined<SharedGuard>> {
        let (mut who, mut has_buried) = (Who::Newcomer, false);
        if let Some(guard) = self.join_readers(false) {
            // A loop of such acquires waits for nothing else.
            tokio::task::consume_budget().await;
            return Ok(Joined::Entered(guard));
        }
        for _ in 0..4 {
            let since = self.hub.clock.now();
            self.hub.read_ahead(since);
            self.take_slot().await?;
            match self.enter(who, since).await? {
                Some(Joined::Many(some)) => {
                    self.bury(&some).await;
                }
                Some(Joined::Blocked(blockers)) => {
                    if has_buried || !self.bury(&blockers).await {
                        return Ok(Joined::Blocked(blockers));
                    }
                    has_buried = true;
                }
                Some(answer) => return Ok(answer),
                None => {}
            }
            who = Who::Known;
        }
        Ok(Joined::Queue)
    }

    /// One attempt of a newcomer that was told that somebody waits. Whoever said so may be dead,
    /// and then nobody is the head of the line.
    async fn attempt_as_head(&mut self) -> Result<Attempt<SharedGuard>> {
        let Attempt::Acquired(line) = self.line().try_acquire().await? else {
            return Ok(Attempt::Busy(None));
        };
        // It replaces the word of the dead, and takes back its own.
        let said = Said::say(self.hub).await?;
        let mut entered = None;
        for is_last in [false, true] {
            self.take_slot().await?;
            let since = self.hub.clock.now();
            match self.enter(Who::Head, since).await? {
                Some(Joined::Entered(guard)) => {
                    entered = Some(guard);
                    break;
                }
                Some(Joined::Blocked(blockers)) if !is_last => {
                    self.bury(&blockers).await;
                }
                _ => {}
            }
        }
        drop((said, line));
        Ok(entered.map_or(Attempt::Busy(None), Attempt::Acquired))
    }

    /// Tries to get the slots of the first of these entries. Those that it gets belonged to holders
    /// that are gone. Returns whether there was one.
    async fn bury(&self, entries: &[EntryId]) -> bool {
        let tries = entries.iter().take(TRIED).map(|id| async move {
            let is_dead = match self.slot_of(id)?.try_acquire().await? {
                // The slot is given back by the drop of its guard.
                Attempt::Acquired(guard) => guard.token() > id.token,
                // A higher token here would prove nothing: a member of a quorum that granted late
                // tells one that is not that of the lease.
                Attempt::Busy(_) => false,
            };
            if is_dead {
                self.hub.mark_dead(id.clone());
            }
            Ok::<_, Error>(is_dead)
        });
        // After a failure of the store, the entry stays until the next try.
        let buried = join_all(tries).await;
        buried.into_iter().any(|is_dead| is_dead.unwrap_or(false))
    }

    /// Takes a slot, unless it has a valid one.
    async fn take_slot(&mut self) -> Result<()> {
        if self.slot.as_ref().is_some_and(|slot| slot.guard.is_valid()) {
            return Ok(());
        }
        self.slot = self.hub.kept_slot(&self.wanted.terms);
        if self.slot.is_some() {
            return Ok(());
        }
        // They are kept until the end, so that none is tried twice.
        let mut busy = Vec::new();
        while busy.len() < OWN_SLOTS {
            let number = if busy.is_empty() {
                SlotNumber::used_before(self.hub)
            } else {
                SlotNumber::unused(self.hub)
            };
            let mut lock = self.of(self.hub.locker.lock_named(&slot_lock(&number.id())?));
            if let Some(ttl) = self.wanted.terms.ttl {
                lock = lock.ttl(ttl);
            }
            let Attempt::Acquired(guard) = lock.try_acquire().await? else {
                busy.push(number);
                continue;
            };
            self.slot = Some(Slot::new(self.hub, number, guard));
            return Ok(());
        }
        let problem = "the slots of this process are busy";
        Err(Error::new(ErrorKind::Unavailable, problem))
    }

    /// Asks for the entry. `None`: the lease of the slot has ended.
    async fn enter(&mut self, who: Who, since: Moment) -> Result<Option<Joined<SharedGuard>>> {
        let Some(slot) = &self.slot else {
            return Ok(None);
        };
        let entered = self.hub.enter(&slot.holder, self.wanted.wish, who, since);
        // The requests are bounded, but not their number, and the task may be on a runtime that
        // stands still.
        let limit = self.left().saturating_add(REQUEST);
        let entered = at_most(&*self.hub.clock, limit, entered).await;
        let entered = entered.unwrap_or_else(|| {
            let problem = "the list of holders was not written in time";
            Err(Error::new(ErrorKind::OutcomeUnknown, problem))
        });
        let joined = match entered {
            Ok(joined) => joined,
            Err(error) => {
                // The entry may be written all the same. It belongs to this slot, which is given
                // up.
                if !error.did_not_happen() {
                    self.hub.leave(slot.holder.id(), None);
                    self.slot = None;
                }
                return Err(error);
            }
        };
        Ok(match joined {
            // An entry counts only with a valid slot: somebody may have taken it for dead.
            Joined::Entered(membership) => {
                let slot = self.slot.take().filter(|slot| slot.holder.is_valid());
                slot.map(|slot| {
                    let seat = Seat::new(slot, membership, &self.wanted.terms);
                    if self.wanted.wish == Wish::Read {
                        self.hub.offer(&seat);
                    }
                    Joined::Entered(SharedGuard::new(seat))
                })
            }
            Joined::Blocked(blockers) => Some(Joined::Blocked(blockers)),
            Joined::Queue => Some(Joined::Queue),
            Joined::Many(some) => Some(Joined::Many(some)),
        })
    }

    /// As the head of the line. `None`: the lease of the line has ended.
    async fn lead(&mut self, line: &Guard) -> Result<Option<SharedGuard>> {
        let hub = Arc::clone(self.hub);
        // Taken back by its drop, at each way out of here.
        let mut said = None;
        let mut blockers = Blockers::default();
        while line.is_valid() {
            match self.enter_as_head(&mut said).await {
                Ok(Some(Joined::Entered(guard))) => return Ok(Some(guard)),
                Ok(Some(Joined::Blocked(ids))) => blockers.watch(self, ids),
                Ok(_) if self.left().is_zero() => return Err(self.busy()),
                Ok(_) => continue,
                // It keeps its place in the line.
                Err(error) => {
                    self.pause_after(error).await?;
                    continue;
                }
            }
            if self.left().is_zero() {
                return Err(self.busy());
            }
            let pause = LOOK.min(self.left());
            tokio::select! {
                biased;
                Some((id, guard)) = blockers.next_free() => {
                    if guard.token() > id.token {
                        hub.mark_dead(id);
                    }
                    drop(guard);
                }
                _ = line.lost() => {}
                () = hub.clock.sleep(pause) => blockers.next_turn(),
            }
        }
        Ok(None)
    }

    async fn enter_as_head(
        &mut self,
        said: &mut Option<Said>,
    ) -> Result<Option<Joined<SharedGuard>>> {
        if said.is_none() {
            let hub = Arc::clone(self.hub);
            // An error of the slot shows below.
            let (answer, _) = tokio::join!(Said::say(&hub), self.take_slot());
            *said = Some(answer?);
        }
        // Only after its own word: that of a dead head is taken back with it.
        if let Some(guard) = self.join_readers(true) {
            return Ok(Some(Joined::Entered(guard)));
        }
        self.take_slot().await?;
        let since = self.hub.clock.now();
        self.enter(Who::Head, since).await
    }
}
