//! What this process knows of one shared lock, and what its callers ask for.
//!
//! This module owns the state that the callers share with the [task](super::task). Invariant: a
//! change of the record is noted here under the mutex and sent by the task alone, so the changes of
//! all callers go out together. No caller writes the record.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt, mem,
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_core::{
    Clock, DistLock, Epoch, Error, ErrorKind, LockName, Locker, Moment, RecordKey, Records, Result,
    Store, Version, at_most,
    sync::{Mutex, MutexGuard},
};
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
};
use uuid::Uuid;

use super::{
    Kind,
    enter::Terms,
    holder::Holder,
    record::{EntryId, Record, Wish},
    seat::{Kept, Seat},
    task::Running,
};

/// The age of the answer to "does somebody wait?" after which a newcomer asks again. So a newcomer
/// passes the head of the line for this long at most.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// The longest wait for the answer to one request.
pub(super) const REQUEST: Duration = Duration::from_secs(5);

/// The shortest limit for the answer to one request, however close the end of a guard is.
const SHORT_REQUEST: Duration = Duration::from_millis(50);

/// What the process knows of one name, and its task.
pub(super) struct Hub {
    pub(super) locker: Locker,
    pub(super) records: Arc<dyn Records>,
    /// The locks of the store that keeps the records, if that is another store. Nobody takes them:
    /// they tell the epoch of the versions.
    pub(super) records_apart: Option<Arc<dyn DistLock>>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) name: LockName,
    pub(super) keys: Keys,
    /// The beginning of the names of this hub's slots.
    pub(super) slots: String,
    pub(super) state: Mutex<State>,
    pub(super) wake: Notify,
}

/// The keys and names that belong to one shared lock.
pub(super) struct Keys {
    pub(super) record: RecordKey,
    pub(super) waiting: RecordKey,
    pub(super) line: LockName,
}

/// What the callers of one hub and its task share.
pub(super) struct State {
    pub(super) capacity: Option<u32>,
    pub(super) known: Option<Known>,
    /// A caller that is about to join wants a record that was read after this moment.
    pub(super) wants: Option<Moment>,
    pub(super) joins: Vec<Join>,
    /// Entries that were given up, with those who wait until the record lacks them.
    pub(super) leaves: HashMap<EntryId, Vec<oneshot::Sender<()>>>,
    /// Entries whose slot somebody of this process got.
    pub(super) dead: HashSet<EntryId>,
    pub(super) holders: HashMap<EntryId, Arc<Holder>>,
    /// The capacities that callers want on record. The last one counts.
    pub(super) resizes: Vec<Resize>,
    pub(super) is_running: bool,
    /// The entry that readers of this process with these terms join.
    pub(super) readers: Option<(Terms, Weak<Seat>)>,
    /// A reader has joined it since the record was last read.
    pub(super) has_joined: bool,
    /// Slots of holders that have left.
    pub(super) kept: Vec<Kept>,
    /// When a holder last left.
    pub(super) last_left: Option<Moment>,
    /// The oldest first: the release of a slot that was just given up may be under way.
    pub(super) free_slots: VecDeque<u32>,
    pub(super) next_slot: u32,
}

/// The record as it was last read or written.
pub(super) struct Known {
    pub(super) version: Option<Version>,
    pub(super) record: Record,
    /// Whether somebody waits, and since when this is known.
    pub(super) is_waited_for: bool,
    pub(super) asked: Moment,
    /// When the request was sent whose answer is this record.
    pub(super) sent: Moment,
    /// The epoch of the store that keeps the records, if that is not the store of the locks.
    pub(super) epoch: Option<Epoch>,
}

/// A change of one entry.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Enter(Wish),
    /// A writer becomes a reader.
    Downgrade,
}

/// A caller that wants another capacity on record.
pub(super) struct Resize {
    pub(super) capacity: u32,
    pub(super) answer: oneshot::Sender<Result<()>>,
}

/// How a caller comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// It has just come, and looks for dead holders first if there are many.
    Newcomer,
    /// A newcomer that has looked for dead holders.
    Known,
    /// The first in the line.
    Head,
}

/// A caller that wants its entry in the record.
pub(super) struct Join {
    pub(super) id: EntryId,
    pub(super) change: Change,
    pub(super) who: Who,
    /// An answer that refuses must come from a record that was read later than this.
    pub(super) since: Moment,
    pub(super) holder: Arc<Holder>,
    /// How many of its writes came too late.
    pub(super) conflicts: u32,
    pub(super) answer: oneshot::Sender<Result<Joined>>,
}

/// The answer to a caller that wants to enter.
#[derive(Debug)]
pub(super) enum Joined<T = Membership> {
    Entered(T),
    /// These holders exclude it.
    Blocked(Vec<EntryId>),
    /// Somebody waits, who comes first.
    Queue,
    /// These are some holders that may be dead, which it buries before it asks again.
    Many(Vec<EntryId>),
}

/// An entry in the record. When it is dropped, the entry is removed in the background.
pub(super) struct Membership {
    hub: Arc<Hub>,
    id: EntryId,
    /// Whether the drop still has to remove the entry.
    is_live: bool,
}

impl Membership {
    pub(super) const fn new(hub: Arc<Hub>, id: EntryId) -> Self {
        Self {
            hub,
            id,
            is_live: true,
        }
    }

    /// Removes the entry. Resolves when the record is known to lack it.
    pub(super) fn leave(mut self) -> impl Future<Output = bool> + use<> {
        let (sender, left) = oneshot::channel();
        self.is_live = false;
        self.hub.leave(&self.id, Some(sender));
        async move { left.await.is_ok() }
    }

    pub(super) const fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Leaves the entry to another membership.
    fn disarm(mut self) {
        self.is_live = false;
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.is_live {
            self.hub.leave(&self.id, None);
        }
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Membership").field(&self.id).finish()
    }
}

impl Hub {
    pub(super) fn new(store: &Store, name: &str, capacity: Option<u32>) -> Result<Arc<Self>> {
        let name = LockName::of_caller(name)?;
        let kind = Kind::of(capacity);
        let record = RecordKey::new(format!("{}{name}", kind.records()))?;
        // The hash keeps the name short enough for every lock name.
        let hash = Uuid::new_v5(&Uuid::NAMESPACE_OID, record.as_str().as_bytes());
        let process = Uuid::new_v4().as_simple().to_string();
        Ok(Arc::new(Self {
            locker: store.locker(),
            records: store.records(),
            records_apart: store.records_store().map(|it| it.backend()),
            clock: store.clock(),
            keys: Keys {
                waiting: RecordKey::new(format!("{}{name}", kind.words()))?,
                line: LockName::new(format!("{}line/{}", LockName::RESERVED, hash.as_simple()))?,
                record,
            },
            name,
            slots: format!("{}-", &process[..16]),
            state: Mutex::new(State {
                capacity,
                known: None,
                wants: None,
                joins: Vec::new(),
                leaves: HashMap::new(),
                dead: HashSet::new(),
                holders: HashMap::new(),
                resizes: Vec::new(),
                is_running: false,
                readers: None,
                has_joined: false,
                kept: Vec::new(),
                last_left: None,
                free_slots: VecDeque::new(),
                next_slot: 0,
            }),
            wake: Notify::new(),
        }))
    }

    pub(super) fn capacity(&self) -> Option<u32> {
        self.state.lock().capacity
    }

    /// Has the record read, unless it was just read. A caller that takes its slot meanwhile needs
    /// one trip for both.
    pub(super) fn read_ahead(self: &Arc<Self>, since: Moment) {
        let mut state = self.state.lock();
        let is_fresh = state
            .known
            .as_ref()
            .is_some_and(|known| known.asked + ASK_AGAIN > since);
        if !is_fresh {
            state.wants = state.wants.max(Some(since));
            self.poke(state);
        }
    }

    /// Asks for an entry in the record, and waits for the answer.
    ///
    /// # Cancel safety
    /// When the future is dropped, an entry that was written is removed again.
    pub(super) async fn enter(
        self: &Arc<Self>,
        holder: &Arc<Holder>,
        wish: Wish,
        who: Who,
        since: Moment,
    ) -> Result<Joined> {
        self.join(holder, Change::Enter(wish), who, since).await
    }

    /// Turns the entry of a writer into that of a reader, in one write.
    pub(super) async fn downgrade(self: &Arc<Self>, holder: &Arc<Holder>) -> Result<()> {
        let now = self.clock.now();
        match self
            .join(holder, Change::Downgrade, Who::Known, now)
            .await?
        {
            // Another membership of the entry exists already.
            Joined::Entered(again) => again.disarm(),
            Joined::Blocked(_) | Joined::Queue | Joined::Many(_) => {}
        }
        Ok(())
    }

    async fn join(
        self: &Arc<Self>,
        holder: &Arc<Holder>,
        change: Change,
        who: Who,
        since: Moment,
    ) -> Result<Joined> {
        loop {
            let (sender, answer) = oneshot::channel();
            {
                let mut state = self.state.lock();
                state.joins.push(Join {
                    id: holder.id().clone(),
                    change,
                    who,
                    since,
                    holder: Arc::clone(holder),
                    conflicts: 0,
                    answer: sender,
                });
                self.poke(state);
            }
            // Without an answer, the runtime of the task has ended. The runtime of this caller
            // lives, and gets a task by the next turn.
            if let Ok(answer) = answer.await {
                return answer;
            }
        }
    }

    /// Notes that an entry is to be removed, also if it is not known whether it was written.
    pub(super) fn leave(self: &Arc<Self>, id: &EntryId, left: Option<oneshot::Sender<()>>) {
        let mut state = self.state.lock();
        state.holders.remove(id);
        state.leaves.entry(id.clone()).or_default().extend(left);
        self.poke(state);
    }

    /// Notes that an entry is dead: its slot was got with a higher token, so the lease of its
    /// holder had ended.
    pub(super) fn mark_dead(&self, id: EntryId) {
        let mut state = self.state.lock();
        state.dead.insert(id);
        // Most holders have left, and have changed the record. A write on condition of the version
        // that is known would come too late, which costs a trip more than this read.
        state.wants = state.wants.max(Some(self.clock.now()));
    }

    /// Makes the task plan its next look again.
    pub(super) fn look_sooner(&self) {
        self.wake.notify_one();
    }

    /// Runs the task unless it runs.
    pub(super) fn poke(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.is_running {
            self.wake.notify_one();
            return;
        }
        // Without a runtime nothing can be written any more. Entries stay until they block
        // somebody.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        state.is_running = true;
        // A runtime that is ending drops the task at once, which locks the state.
        drop(state);
        let running = Running::new(Arc::clone(self));
        drop(runtime.spawn(running.run()));
    }

    /// The record as it is now.
    pub(super) async fn look(&self) -> Result<(Option<Version>, Record)> {
        let read = self.bounded(self.records.get(&self.keys.record)).await;
        let Some(stored) = read.map_err(Error::of_read)? else {
            return Ok((None, Record::empty(self.capacity())));
        };
        let record = Record::parse(&self.keys.record, &stored, Kind::of(self.capacity()))?;
        Ok((Some(stored.version), record))
    }

    /// Sets another capacity, for all processes.
    pub(super) async fn resize(self: &Arc<Self>, capacity: u32) -> Result<()> {
        loop {
            let (sender, answer) = oneshot::channel();
            {
                let mut state = self.state.lock();
                state.resizes.push(Resize {
                    capacity,
                    answer: sender,
                });
                self.poke(state);
            }
            if let Ok(answer) = answer.await {
                return answer;
            }
        }
    }

    /// Waits for the answer to a request. One that hangs must leave time for another one before a
    /// guard of this process ends.
    pub(super) async fn bounded<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.state.lock().time_for_a_request(self.clock.now());
        let answer = at_most(&*self.clock, limit, request).await;
        answer.unwrap_or_else(|| {
            let problem = "the store did not answer in time";
            Err(Error::new(ErrorKind::OutcomeUnknown, problem))
        })
    }
}

impl State {
    fn time_for_a_request(&self, now: Moment) -> Duration {
        let ends = self.holders.values().map(|holder| holder.entry_until());
        // A guard that has ended needs no answer in time.
        let first = ends.filter(|end| *end > now).min();
        let half = first.map(|end| end.since(now) / 2);
        half.map_or(REQUEST, |half| half.clamp(SHORT_REQUEST, REQUEST))
    }

    /// Answers everybody that waits for an answer of the store with this error.
    pub(super) fn refuse_all(&mut self, error: &Error) {
        for resize in mem::take(&mut self.resizes) {
            let _ = resize.answer.send(Err(error.clone()));
        }
        for join in mem::take(&mut self.joins) {
            // Its caller has gone, and an earlier write without an answer may have the entry.
            if join.answer.send(Err(error.clone())).is_err() {
                self.leaves.entry(join.id).or_default();
            }
        }
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
