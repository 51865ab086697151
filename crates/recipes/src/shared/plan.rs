//! What the next write of the record contains.
//!
//! Invariant: a decision compares the newcomer with all entries of the record that the write
//! replaces. An entry is removed only if its holder gave it up, if somebody got its slot, or if
//! this process has its slot with a higher token. The module sends nothing to a store.

use std::{
    collections::{HashMap, HashSet},
    mem,
    time::Duration,
};

use distlock_core::{Error, ErrorKind, FencingToken, LockName, LossReason, Moment, Version};

use super::{
    hub::{ASK_AGAIN, Change, Join, Joined, Known, Resize, State, Who},
    record::{EntryId, MANY_ENTRIES, Mode, Record},
};

/// The number of holders whose slots a caller tries who sees many of them. Each enter adds one
/// entry at most, so dead ones do not pile up.
const SOME: usize = 8;

/// The number of conflicts after which a caller goes to the line, where its word makes the others
/// queue. The store may be farther from its process than from theirs.
const CONFLICTS: u32 = 4;

/// The time after which a process that left an empty list looks whether somebody still waits.
const TIDY_AFTER: Duration = Duration::from_secs(1);

/// A write that is about to be sent.
pub(super) struct Plan {
    pub(super) expect: Option<Version>,
    pub(super) is_waited_for: bool,
    pub(super) record: Record,
    pub(super) joins: Vec<(Join, Mode)>,
    pub(super) left: Vec<EntryId>,
    pub(super) resizes: Vec<Resize>,
    /// The number of entries of dead holders that it removes.
    pub(super) dead: u64,
}

/// What the task does next.
pub(super) enum Next {
    Work,
    /// Nothing until this moment. Then the record must be looked at.
    LookAt(Moment),
    Nothing,
}

impl State {
    pub(super) fn next(&self, now: Moment) -> Next {
        let has_changes =
            !self.joins.is_empty() || !self.leaves.is_empty() || !self.resizes.is_empty();
        if has_changes || self.is_read_wanted() {
            return Next::Work;
        }
        let looks = self.holders.values().map(|holder| holder.look_at());
        let tidy_at = self.known.as_ref().and_then(Known::tidy_at);
        let others = [tidy_at, self.ask_for_readers_at(), self.kept_until()];
        match looks.chain(others.into_iter().flatten()).min() {
            Some(at) if at > now => Next::LookAt(at),
            Some(_) => Next::Work,
            None => Next::Nothing,
        }
    }

    /// Whether a caller wants a later record than the one that is known.
    fn is_read_wanted(&self) -> bool {
        let asked = self.known.as_ref().map(|known| known.asked);
        self.wants.is_some_and(|since| asked < Some(since))
    }

    pub(super) fn needs_read(&self, now: Moment) -> bool {
        let Some(known) = &self.known else {
            return true;
        };
        let is_old = known.asked + ASK_AGAIN <= now;
        let must_look = self.holders.values().any(|holder| holder.look_at() <= now);
        let may_tidy = known.is_waited_for && known.tidy_at().is_some_and(|at| at <= now);
        let must_ask = self.ask_for_readers_at().is_some_and(|at| at <= now);
        self.is_read_wanted()
            || must_look
            || may_tidy
            || must_ask
            || (is_old && self.joins.iter().any(|it| it.who != Who::Head))
    }

    /// When to ask again whether somebody waits, for the readers that join an entry without a
    /// request of their own.
    fn ask_for_readers_at(&self) -> Option<Moment> {
        let readers = self.readers.as_ref().filter(|_| self.has_joined);
        let are_there = readers.is_some_and(|(_, readers)| readers.strong_count() > 0);
        let known = self.known.as_ref().filter(|_| are_there);
        known.map(|known| known.asked + ASK_AGAIN * 4 / 5)
    }

    /// A request that was sent then has shown this record. A guard whose entry it lacks is lost.
    pub(super) fn saw(&mut self, record: &Record, sent: Moment) {
        let ids: HashSet<&EntryId> = record.entries.iter().map(|entry| &entry.id).collect();
        self.holders.retain(|id, holder| {
            if ids.contains(id) {
                holder.seen(sent);
            } else {
                holder.lose(LossReason::HistoryChanged);
            }
            // Nobody needs to look any more for the entry of a guard that is lost.
            holder.loss().is_none()
        });
        self.dead.retain(|id| ids.contains(id));
    }

    /// Decides about all that wait, and answers those that are refused. `None`: nothing is to be
    /// written.
    pub(super) fn plan(&mut self, name: &LockName) -> Option<Plan> {
        let known = self.known.as_ref()?;
        let mut record = known.record.clone();
        let left: Vec<EntryId> = self.leaves.keys().cloned().collect();
        let dead = self.remove_gone(&mut record);
        let capacity = self.resizes.last().map(|it| it.capacity).or(self.capacity);
        if !self.resizes.is_empty() || (record.entries.is_empty() && !known.is_waited_for) {
            record.capacity = capacity;
        }
        let mut joins = Vec::new();
        let mut waiting = mem::take(&mut self.joins);
        // The head of the line comes first.
        waiting.sort_by_key(|join| join.who != Who::Head);
        for join in waiting {
            if join.answer.is_closed() {
                // Its caller has gone. An earlier write without an answer may have the entry.
                self.leaves.entry(join.id).or_default();
                continue;
            }
            if record.capacity != capacity {
                // Those who asked for the other number may all be dead.
                let answer = match (join.who, record.entries.is_empty()) {
                    (Who::Newcomer, false) => Some(Ok(Joined::Many(some_of(&record)))),
                    (Who::Newcomer, true) => Some(Ok(Joined::Queue)),
                    (Who::Head, true) => None,
                    _ => {
                        let error = other_capacity(record.capacity, capacity);
                        Some(Err(error.about(name)))
                    }
                };
                if let Some(answer) = answer {
                    let _ = join.answer.send(answer);
                    continue;
                }
                record.capacity = capacity;
            }
            match decide(&mut record, known, &join) {
                Decision::Write(mode) => joins.push((join, mode)),
                Decision::Refuse(answer) => {
                    let _ = join.answer.send(Ok(answer));
                }
                Decision::ReadAgain => {
                    self.wants = self.wants.max(Some(join.since));
                    self.joins.push(join);
                }
                Decision::Fail(error) => {
                    let _ = join.answer.send(Err(error.about(name)));
                }
            }
        }
        // A join is written also where the record has its entry already: an earlier write without
        // an answer has arrived, and a store may forget a write that it has not acknowledged.
        let is_changed = record != known.record;
        let is_left_over = record.entries.is_empty() && !known.is_waited_for;
        if !joins.is_empty() || (known.version.is_some() && (is_changed || is_left_over)) {
            return Some(Plan {
                expect: known.version,
                is_waited_for: known.is_waited_for,
                record,
                joins,
                left,
                resizes: mem::take(&mut self.resizes),
                dead,
            });
        }
        self.have_left(&left);
        let resizes = mem::take(&mut self.resizes);
        self.have_resized(resizes);
        None
    }

    /// Sends those callers to the line whose writes came too late again and again.
    pub(super) fn queue_the_slow(&mut self) {
        let is_slow = |join: &mut Join| {
            let is_outside = matches!(join.change, Change::Enter(_)) && join.who != Who::Head;
            is_outside && join.conflicts >= CONFLICTS
        };
        for join in self.joins.extract_if(.., is_slow) {
            // An earlier write without an answer may have the entry.
            self.leaves.entry(join.id).or_default();
            let _ = join.answer.send(Ok(Joined::Queue));
        }
    }

    /// Removes the entries that were given up, and those of dead holders. Returns the number of the
    /// latter.
    fn remove_gone(&self, record: &mut Record) -> u64 {
        let holders = self.holders.keys();
        let ids = holders.chain(self.joins.iter().map(|join| &join.id));
        let mut own: HashMap<&str, FencingToken> = HashMap::new();
        for id in ids {
            let token = own.entry(&id.slot).or_insert(id.token);
            *token = (*token).max(id.token);
        }
        // A late write of an earlier use of this slot. Its lock is held now, so nobody else would
        // find out soon.
        let is_earlier = |id: &EntryId| own.get(&*id.slot).is_some_and(|now| *now > id.token);
        let mut dead = 0;
        record.entries.retain(|entry| {
            if self.leaves.contains_key(&entry.id) {
                return false;
            }
            let is_dead = self.dead.contains(&entry.id) || is_earlier(&entry.id);
            dead += u64::from(is_dead);
            !is_dead
        });
        dead
    }

    /// The last one of these capacities counts from now on: answers those who wait for that.
    pub(super) fn have_resized(&mut self, resizes: Vec<Resize>) {
        for resize in resizes {
            self.capacity = Some(resize.capacity);
            let _ = resize.answer.send(Ok(()));
        }
    }

    /// The record lacks these entries: answers those who wait for that.
    pub(super) fn have_left(&mut self, left: &[EntryId]) {
        for id in left {
            for sender in self.leaves.remove(id).unwrap_or_default() {
                let _ = sender.send(());
            }
        }
    }
}

impl Known {
    /// When a list without holders is to be deleted, which was kept because somebody waited.
    fn tidy_at(&self) -> Option<Moment> {
        let is_empty = self.version.is_some() && self.record.entries.is_empty();
        match (is_empty, self.is_waited_for) {
            (false, _) => None,
            (true, false) => Some(self.sent),
            // Once after the last write. After that it is left to whoever comes next.
            (true, true) => (self.asked < self.sent).then(|| self.sent + TIDY_AFTER),
        }
    }
}

enum Decision {
    Write(Mode),
    Refuse(Joined),
    ReadAgain,
    Fail(Error),
}

/// Decides about one caller, and changes the record that is about to be written.
fn decide(record: &mut Record, known: &Known, join: &Join) -> Decision {
    let own = record.find(&join.id).map(|entry| entry.mode.clone());
    let wish = match (&join.change, own) {
        (Change::Enter(wish), Some(mode)) if wish.is_met_by(&mode) => return Decision::Write(mode),
        // What it finds may be of an earlier use of the slot: a late write, or a removal that the
        // store has forgotten.
        (Change::Enter(wish), _) => {
            record.entries.retain(|entry| entry.id != join.id);
            *wish
        }
        (Change::Downgrade, Some(Mode::Write)) => {
            // A writer is alone.
            for entry in &mut record.entries {
                entry.mode = Mode::Read;
            }
            return Decision::Write(Mode::Read);
        }
        (Change::Downgrade, Some(mode)) => return Decision::Write(mode),
        (Change::Downgrade, None) => {
            let problem = "the record has no entry of this holder any more";
            return Decision::Fail(Error::new(ErrorKind::Lost, problem));
        }
    };
    if known.is_waited_for && join.who != Who::Head {
        return if known.asked < join.since {
            Decision::ReadAgain
        } else {
            Decision::Refuse(Joined::Queue)
        };
    }
    if join.who == Who::Newcomer && record.entries.len() > MANY_ENTRIES {
        return Decision::Refuse(Joined::Many(some_of(record)));
    }
    match record.fit(wish) {
        Some(mode) => match record.add(join.id.clone(), mode.clone()) {
            Ok(()) => Decision::Write(mode),
            Err(error) => Decision::Fail(error),
        },
        None if known.sent < join.since => Decision::ReadAgain,
        // Whoever waits for more permits than there are since a resize would keep all others out.
        None if record.capacity < wish.permits() => {
            let problem = format!(
                "the semaphore has {} permits, fewer than this caller asks for",
                record.capacity.unwrap_or_default()
            );
            Decision::Fail(Error::new(ErrorKind::InvalidArgument, problem))
        }
        None => Decision::Refuse(Joined::Blocked(record.blockers(wish))),
    }
}

/// At most [`SOME`] entries: the oldest ones, and others that are chosen at random, because a few
/// holders that live for long must not hide the dead ones behind them.
fn some_of(record: &Record) -> Vec<EntryId> {
    let (oldest, newer) = record.entries.split_at(record.entries.len().min(SOME / 2));
    let from = fastrand::usize(..newer.len().max(1));
    let behind = newer[from..].iter().chain(&newer[..from]);
    let chosen = oldest.iter().chain(behind).take(SOME);
    chosen.map(|entry| entry.id.clone()).collect()
}

fn other_capacity(stored: Option<u32>, asked: Option<u32>) -> Error {
    let number = |capacity: Option<u32>| capacity.map_or("none".to_owned(), |it| it.to_string());
    let problem = format!(
        "{} permits are on record, and this process asks for one of {}: use the same number in all \
         processes, or `Semaphore::resize`",
        number(stored),
        number(asked)
    );
    Error::new(ErrorKind::InvalidArgument, problem)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use distlock_core::{Guard, Store};
    use distlock_memory::Memory;
    use tokio::sync::oneshot;

    use super::*;
    use crate::shared::{
        holder::Holder,
        hub::Hub,
        record::{Entry, Wish},
    };

    /// A caller that waits, with the guard of its slot and the answer that it waits for.
    struct Waiting {
        join: Join,
        _guard: Guard,
        answer: oneshot::Receiver<distlock_core::Result<Joined>>,
    }

    /// The hub of one name in an empty store.
    struct Place {
        store: Store,
        hub: Arc<Hub>,
    }

    impl Place {
        fn new(capacity: Option<u32>) -> Self {
            let memory = Memory::default();
            let store = Store::new(memory.lock(), memory.records());
            let hub = Hub::new(&store, "x", capacity).unwrap();
            Self { store, hub }
        }

        async fn wait(&self, slot: &str, change: Change, who: Who) -> Waiting {
            let guard = self.store.locker().lock(slot).acquire().await.unwrap();
            let id = EntryId {
                slot: slot.to_owned(),
                token: guard.token(),
            };
            let clock = &self.hub.clock;
            let holder = Holder::new(&self.hub.name, id.clone(), &guard, clock);
            let (sender, answer) = oneshot::channel();
            let join = Join {
                id,
                change,
                who,
                since: clock.now(),
                holder,
                conflicts: 0,
                answer: sender,
            };
            Waiting {
                join,
                _guard: guard,
                answer,
            }
        }

        /// The plan for one caller, after this record was read.
        fn plan(&self, join: Join, entries: Vec<Entry>, is_waited_for: bool) -> Option<Plan> {
            self.plan_for(join, self.hub.capacity(), entries, is_waited_for)
        }

        fn plan_for(
            &self,
            join: Join,
            capacity: Option<u32>,
            entries: Vec<Entry>,
            is_waited_for: bool,
        ) -> Option<Plan> {
            let now = self.hub.clock.now() + Duration::from_millis(1);
            let mut state = self.hub.state.lock();
            let mut record = Record::empty(capacity);
            record.entries = entries;
            state.known = Some(Known {
                version: Some(Version::new(7)),
                record,
                is_waited_for,
                asked: now,
                sent: now,
                epoch: None,
            });
            state.joins.push(join);
            state.plan(&self.hub.name)
        }
    }

    fn entry(slot: &str, token: u64, mode: Mode) -> Entry {
        let token = FencingToken::new(token).unwrap();
        let slot = slot.to_owned();
        Entry {
            id: EntryId { slot, token },
            mode,
        }
    }

    #[tokio::test]
    async fn an_entry_of_an_earlier_use_of_the_slot_is_dead() {
        let place = Place::new(None);
        let waiting = place
            .wait("a", Change::Enter(Wish::Write), Who::Known)
            .await;
        let plan = place.plan(waiting.join, vec![entry("a", 1, Mode::Write)], false);
        let plan = plan.expect("the writer enters");
        assert_eq!((plan.dead, plan.record.entries.len()), (1, 1));
        assert_eq!(plan.joins.len(), 1);
    }

    #[tokio::test]
    async fn an_entry_that_is_there_already_is_written_once_more() {
        let place = Place::new(None);
        let waiting = place.wait("a", Change::Enter(Wish::Read), Who::Known).await;
        let own = entry("a", waiting.join.id.token.get(), Mode::Read);
        let plan = place.plan(waiting.join, vec![own.clone()], false);
        let plan = plan.expect("a write for a token that was acknowledged");
        assert_eq!(plan.record.entries, [own]);
    }

    #[tokio::test]
    async fn an_entry_that_is_there_with_another_mode_counts_for_nothing() {
        let place = Place::new(None);
        let waiting = place
            .wait("a", Change::Enter(Wish::Write), Who::Known)
            .await;
        let id = waiting.join.id.clone();
        let own = entry("a", id.token.get(), Mode::Read);
        let plan = place.plan(waiting.join, vec![own.clone()], false);
        let plan = plan.expect("nobody else holds");
        let mode = Mode::Write;
        assert_eq!(plan.record.entries, [Entry { id, mode }]);

        let mut waiting = place
            .wait("b", Change::Enter(Wish::Write), Who::Known)
            .await;
        let mine = entry("b", waiting.join.id.token.get(), Mode::Read);
        let _ = place.plan(waiting.join, vec![own, mine], false);
        let answer = waiting.answer.try_recv().unwrap();
        assert!(
            matches!(&answer, Ok(Joined::Blocked(ids)) if ids.len() == 1),
            "{answer:?}"
        );
    }

    #[tokio::test]
    async fn a_newcomer_goes_to_the_line_and_the_head_enters() {
        let place = Place::new(None);
        let mut newcomer = place.wait("a", Change::Enter(Wish::Read), Who::Known).await;
        assert!(place.plan(newcomer.join, Vec::new(), true).is_none());
        let answer = newcomer.answer.try_recv().unwrap();
        assert!(matches!(answer, Ok(Joined::Queue)), "{answer:?}");
        let head = place.wait("b", Change::Enter(Wish::Read), Who::Head).await;
        assert!(place.plan(head.join, Vec::new(), true).is_some());
    }

    #[tokio::test]
    async fn a_newcomer_is_told_of_many_holders_with_the_oldest_ones() {
        let place = Place::new(None);
        let entries: Vec<Entry> = (0..70)
            .map(|number| entry(&format!("s{number}"), 1, Mode::Read))
            .collect();
        let mut newcomer = place
            .wait("a", Change::Enter(Wish::Read), Who::Newcomer)
            .await;
        assert!(place.plan(newcomer.join, entries.clone(), false).is_none());
        let Ok(Joined::Many(some)) = newcomer.answer.try_recv().unwrap() else {
            panic!("it was not told");
        };
        assert_eq!(some.len(), SOME);
        assert_eq!((&*some[0].slot, &*some[3].slot), ("s0", "s3"));
        let distinct: HashSet<&EntryId> = some.iter().collect();
        assert_eq!(distinct.len(), SOME);
        let known = place.wait("b", Change::Enter(Wish::Read), Who::Known).await;
        assert!(place.plan(known.join, entries, false).is_some());
    }

    #[tokio::test]
    async fn another_capacity_is_an_error_while_somebody_holds() {
        let place = Place::new(Some(3));
        let mut waiting = place
            .wait("a", Change::Enter(Wish::Permits(1)), Who::Known)
            .await;
        let held = vec![entry("s", 1, Mode::Permits(vec![0]))];
        let plan = place.plan_for(waiting.join, Some(4), held, false);
        assert!(plan.is_none());
        let error = waiting.answer.try_recv().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let names_both = ["3", "4"].iter().all(|it| error.message().contains(it));
        assert!(names_both, "{error}");
    }
    #[tokio::test]
    async fn holders_with_another_capacity_may_be_dead() {
        let place = Place::new(Some(3));
        let wish = || Change::Enter(Wish::Permits(1));
        let mut newcomer = place.wait("a", wish(), Who::Newcomer).await;
        let held = vec![entry("s", 1, Mode::Permits(vec![0]))];
        assert!(
            place
                .plan_for(newcomer.join, Some(4), held, false)
                .is_none()
        );
        let answer = newcomer.answer.try_recv().unwrap();
        assert!(matches!(&answer, Ok(Joined::Many(ids)) if ids.len() == 1));
        // Nobody holds, and the word of a head is left, which may be dead.
        let mut newcomer = place.wait("b", wish(), Who::Newcomer).await;
        let plan = place.plan_for(newcomer.join, Some(4), Vec::new(), true);
        assert!(plan.is_none());
        let answer = newcomer.answer.try_recv().unwrap();
        assert!(matches!(answer, Ok(Joined::Queue)), "{answer:?}");
        let head = place.wait("c", wish(), Who::Head).await;
        let plan = place.plan_for(head.join, Some(4), Vec::new(), true);
        assert_eq!(plan.unwrap().record.capacity, Some(3));
    }

    #[tokio::test]
    async fn a_wish_above_the_capacity_keeps_nobody_out() {
        let place = Place::new(Some(3));
        let mut head = place
            .wait("a", Change::Enter(Wish::Permits(5)), Who::Head)
            .await;
        assert!(place.plan(head.join, Vec::new(), true).is_none());
        let error = head.answer.try_recv().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }

    #[tokio::test]
    async fn a_caller_whose_writes_come_too_late_goes_to_the_line() {
        let place = Place::new(None);
        let mut callers = Vec::new();
        for (slot, who, conflicts) in [
            ("a", Who::Known, CONFLICTS),
            ("b", Who::Known, CONFLICTS - 1),
            ("c", Who::Head, CONFLICTS),
        ] {
            let mut caller = place.wait(slot, Change::Enter(Wish::Read), who).await;
            caller.join.conflicts = conflicts;
            place.hub.state.lock().joins.push(caller.join);
            callers.push(caller.answer);
        }
        place.hub.state.lock().queue_the_slow();
        let answers: Vec<_> = callers.iter_mut().map(|it| it.try_recv().ok()).collect();
        assert!(
            matches!(answers[..], [Some(Ok(Joined::Queue)), None, None]),
            "{answers:?}"
        );
    }
}
