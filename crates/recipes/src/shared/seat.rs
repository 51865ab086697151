//! The entries of this process, each with the slot behind it: which guards share one, and which
//! slots outlive their entry.
//!
//! Invariant: an entry is given up by the last of its guards, and its slot is used again without a
//! release only if the record is known to lack the entry. An entry of a writer or of permits has
//! one guard.

use std::{
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use distlock_core::{Error, ErrorKind, Moment, Released, Result, at_most};
use tokio::sync::Mutex;

use super::{
    enter::Terms,
    guard::SharedGuard,
    holder::Holder,
    hub::{ASK_AGAIN, Hub, Membership, State},
    slot::Slot,
};

/// The longest wait of a release for the write of the record.
const LEAVING: Duration = Duration::from_secs(5);

/// How long a slot without an entry is kept for the next caller. The head of the line, whom the
/// release of a slot wakes, may wait for this long more.
const KEPT: Duration = Duration::from_millis(50);

/// The longest hold after which a slot is kept. After a longer one, somebody may wait of whom this
/// process has not heard.
const SHORT_HOLD: Duration = Duration::from_millis(10);

/// An entry in the record, and its slot. The drop gives both up.
pub(super) struct Seat {
    // Dropped first: without the slot the entry counts no longer.
    slot: Slot,
    membership: Membership,
    terms: Terms,
    entered: Moment,
    /// Set before the slot gets another TTL, which is not that of the terms.
    is_extended: AtomicBool,
    extending: Mutex<()>,
}

/// A slot whose holder has left, for the next caller of this process.
pub(super) struct Kept {
    slot: Slot,
    terms: Terms,
    until: Moment,
}

impl Seat {
    pub(super) fn new(slot: Slot, membership: Membership, terms: &Terms) -> Arc<Self> {
        let entered = membership.hub().clock.now();
        Arc::new(Self {
            slot,
            membership,
            terms: terms.clone(),
            entered,
            is_extended: AtomicBool::new(false),
            extending: Mutex::new(()),
        })
    }

    pub(super) const fn slot(&self) -> &Slot {
        &self.slot
    }

    pub(super) const fn hub(&self) -> &Arc<Hub> {
        self.membership.hub()
    }

    pub(super) const fn entry(&self) -> &Arc<Holder> {
        &self.slot.holder
    }

    /// Gives the entry a new TTL. While others share it, the TTL gets no shorter.
    pub(super) async fn extend(self: &Arc<Self>, mut ttl: Duration) -> Result<()> {
        // One after the other: a later one must not undo the longer TTL of an earlier one.
        let _turn = self.extending.lock().await;
        self.is_extended.store(true, Relaxed);
        // Nobody joins any more, who would not get what it asked for.
        self.hub().offer_none(self);
        if Arc::strong_count(self) > 1 {
            ttl = ttl.max(self.slot.guard.ttl().duration());
        }
        self.slot.guard.extend(ttl).await?;
        self.entry().set_ttl(self.slot.guard.ttl().duration());
        // With a shorter TTL the entry must be looked for sooner than the task has planned.
        self.hub().look_sooner();
        Ok(())
    }

    /// Removes the entry, and releases the slot at the same time or keeps it.
    pub(super) async fn release(self) -> Released {
        let Self {
            slot,
            membership,
            terms,
            entered,
            is_extended,
            ..
        } = self;
        let hub = Arc::clone(membership.hub());
        let is_whole = slot.holder.is_valid() && !is_extended.into_inner();
        let keeps = is_whole && hub.state.lock().keeps(entered, hub.clock.now());
        let mut leaving = pin!(at_most(&*hub.clock, LEAVING, membership.leave()));
        // While the removal hangs, the slot must not hide a dead entry for longer.
        let early = match keeps {
            true => at_most(&*hub.clock, KEPT, &mut leaving).await,
            false => None,
        };
        let (left, released) = match early {
            Some(Some(true)) => {
                hub.keep(slot, terms);
                return Released::Clean;
            }
            Some(left) => (left, slot.guard.release().await),
            None => tokio::join!(leaving, slot.guard.release()),
        };
        if released.is_clean() && left != Some(true) {
            // The entry is dead from now on. Whom it blocks removes it.
            let problem = "the entry in the list of holders could not be removed yet";
            return Released::Unconfirmed(Error::new(ErrorKind::OutcomeUnknown, problem));
        }
        released
    }
}

impl Hub {
    /// Lets the readers of this process that come from now on join this entry.
    pub(super) fn offer(&self, seat: &Arc<Seat>) {
        self.state.lock().readers = Some((seat.terms.clone(), Arc::downgrade(seat)));
    }

    fn offer_none(&self, seat: &Arc<Seat>) {
        let mut state = self.state.lock();
        let is_its = |(_, readers): &mut (Terms, Weak<Seat>)| readers.as_ptr() == Arc::as_ptr(seat);
        state.readers.take_if(is_its);
    }

    /// A guard of the entry that other readers of this process have, without a request. The head
    /// of the line may pass those who wait; another caller may only if it is known that nobody
    /// waits.
    pub(super) fn join_readers(&self, terms: &Terms, is_head: bool) -> Option<SharedGuard> {
        let now = self.clock.now();
        let seat = {
            let mut state = self.state.lock();
            let known = state.known.as_ref();
            let nobody_waits =
                known.is_some_and(|it| !it.is_waited_for && it.asked + ASK_AGAIN > now);
            if !is_head && !nobody_waits {
                return None;
            }
            let (its, readers) = state.readers.as_ref()?;
            if its != terms {
                return None;
            }
            let seat = readers.upgrade()?;
            // The first one since the last answer makes the task ask again in time.
            if !std::mem::replace(&mut state.has_joined, true) {
                self.wake.notify_one();
            }
            seat
        };
        // Not under the mutex: the drop of an entry locks it.
        seat.entry().is_fresh().then(|| SharedGuard::new(seat))
    }

    /// A slot that was kept for a caller with these terms.
    pub(super) fn kept_slot(&self, terms: &Terms) -> Option<Slot> {
        loop {
            let kept = {
                let mut state = self.state.lock();
                let at = state.kept.iter().position(|kept| kept.terms == *terms)?;
                state.kept.swap_remove(at)
            };
            // The lease of one that is not valid has ended: it is dropped like every other.
            if let Some(slot) = kept.slot.again(&self.clock) {
                return Some(slot);
            }
        }
    }

    fn keep(self: &Arc<Self>, slot: Slot, terms: Terms) {
        let until = self.clock.now() + KEPT;
        let mut state = self.state.lock();
        state.kept.push(Kept { slot, terms, until });
        self.poke(state);
    }
}

impl State {
    /// Whether the slot of a holder that leaves is kept: callers follow each other closely, and
    /// nobody waits who would be woken by its release.
    fn keeps(&mut self, entered: Moment, now: Moment) -> bool {
        let last = self.last_left.replace(now);
        let nobody_waits = self.known.as_ref().is_some_and(|it| !it.is_waited_for);
        let is_soon = last.is_some_and(|last| last + KEPT > entered);
        nobody_waits && is_soon && entered + SHORT_HOLD > now
    }

    /// The slots that are kept no longer. They are to be dropped outside of the mutex, which the
    /// drop locks.
    pub(super) fn no_longer_kept(&mut self, now: Moment) -> Vec<Kept> {
        let is_waited_for = self.known.as_ref().is_some_and(|it| it.is_waited_for);
        let is_over = |kept: &mut Kept| is_waited_for || kept.until <= now;
        self.kept.extract_if(.., is_over).collect()
    }

    /// When the first slot is kept no longer.
    pub(super) fn kept_until(&self) -> Option<Moment> {
        self.kept.iter().map(|kept| kept.until).min()
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::{Expect, LockName, Store, Written};
    use distlock_memory::Memory;

    use super::*;
    use crate::shared::{
        enter::{self, Wanted},
        record::Wish,
        slot::slot_lock,
    };

    /// The limit for what must happen at once.
    const SOON: Duration = Duration::from_secs(10);

    fn place() -> (Store, Arc<Hub>) {
        let memory = Memory::default();
        let store = Store::new(memory.lock(), memory.records());
        let hub = Hub::new(&store, "x", None).unwrap();
        (store, hub)
    }

    async fn acquire(hub: &Arc<Hub>, wish: Wish) -> SharedGuard {
        let wanted = Wanted {
            wish,
            wait: Some(SOON),
            terms: Terms::default(),
        };
        enter::acquire(hub, &wanted).await.unwrap()
    }

    async fn cycles(hub: &Arc<Hub>, times: usize) {
        for _ in 0..times {
            let guard = acquire(hub, Wish::Write).await;
            assert!(guard.release().await.is_clean());
        }
    }

    fn kept(hub: &Hub) -> usize {
        hub.state.lock().kept.len()
    }

    #[tokio::test]
    async fn a_slot_is_kept_for_callers_that_follow_each_other_and_then_released() {
        let (store, hub) = place();
        cycles(&hub, 1).await;
        assert_eq!(kept(&hub), 0);
        cycles(&hub, 20).await;
        assert_eq!(kept(&hub), 1);
        let id = hub.state.lock().kept[0].slot.holder.id().clone();
        let reader = acquire(&hub, Wish::Read).await;
        assert!(hub.state.lock().holders.contains_key(&id));
        assert!(reader.token() > id.token);
        assert!(reader.release().await.is_clean());

        let slot: LockName = slot_lock(&id.slot).unwrap();
        let free = async {
            while store.backend().inspect(&slot).await.unwrap().held.is_some() {
                hub.clock.sleep(KEPT / 10).await;
            }
        };
        tokio::time::timeout(SOON, free).await.unwrap();
        assert_eq!(kept(&hub), 0);
    }

    #[tokio::test]
    async fn a_slot_with_another_ttl_is_not_kept() {
        let (_store, hub) = place();
        cycles(&hub, 20).await;
        let guard = acquire(&hub, Wish::Write).await;
        guard.extend(Duration::from_secs(60)).await.unwrap();
        assert!(guard.release().await.is_clean());
        assert_eq!(kept(&hub), 0);
    }

    #[tokio::test]
    async fn a_reader_that_joins_takes_back_the_word_of_a_dead_head() {
        let (store, hub) = place();
        let first = acquire(&hub, Wish::Read).await;
        let (records, key) = (store.records(), &hub.keys.waiting);
        let put = records.put(key, br#"{"v":1}"#, Expect::Absent).await;
        assert!(matches!(put, Ok(Written::Stored(_))), "{put:?}");
        // By then a newcomer asks the store whether somebody waits.
        hub.clock.sleep(ASK_AGAIN).await;
        let second = acquire(&hub, Wish::Read).await;
        assert_eq!(second.token(), first.token());
        let gone = async {
            while records.get(key).await.unwrap().is_some() {
                hub.clock.sleep(KEPT / 10).await;
            }
        };
        tokio::time::timeout(SOON, gone).await.unwrap();
    }

    #[tokio::test]
    async fn no_slot_is_kept_while_somebody_waits() {
        let (_store, hub) = place();
        cycles(&hub, 20).await;
        let now = hub.clock.now();
        let released = {
            let mut state = hub.state.lock();
            assert_eq!((state.kept.len(), state.no_longer_kept(now).len()), (1, 0));
            assert!(state.keeps(now, now));
            state.known.as_mut().unwrap().is_waited_for = true;
            assert!(!state.keeps(now, now));
            state.no_longer_kept(now)
        };
        assert_eq!((kept(&hub), released.len()), (0, 1));
    }
}
