//! Keeps the last changes of presence, and those of accounts, for readers.
//!
//! Invariant of this module: the numbers of changes rise by one, and a reader gets every change in
//! order, or a gap. A login records its change and must never wait for a reader.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use distlock_core::{Clock, Moment, sync::Mutex, unix_time};
use tokio::sync::watch;
use uuid::Uuid;

use crate::model::{
    change::{AccountChange, AccountNews, Change, ChangeId, Gap},
    ident::{ClientInfo, Uid},
    notice::Offline,
    record::SlotEntry,
};

/// Number of changes that are kept for readers that are behind or come back.
const KEPT: usize = 10_000;
/// Most changes in one read, so that a read holds the lock for a short time.
const READ: usize = 64;

/// The last changes of one kind on this node. Each kind has numbers and a bound of its own, so that
/// many changes of one kind do not push out those of another.
#[derive(Debug)]
pub(crate) struct Changes<T = Change> {
    run: Uuid,
    clock: Arc<dyn Clock>,
    kept: Mutex<Kept<T>>,
    /// The number of the newest change, for readers that wait.
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct Kept<T> {
    /// The number of the newest change; 0 before the first one.
    newest: u64,
    /// The changes, each with its time.
    changes: VecDeque<(Moment, Arc<T>)>,
}

impl Changes {
    /// Records that a session was let in.
    pub(crate) fn record_online(&self, uid: &Uid, session: SlotEntry) {
        self.record(uid, session, true, None);
    }

    /// Records that a session may neither send nor receive any more. A client that left has no
    /// notice.
    pub(crate) fn record_offline(&self, uid: &Uid, session: SlotEntry, notice: Option<&Offline>) {
        self.record(uid, session, false, notice);
    }

    fn record(&self, uid: &Uid, session: SlotEntry, online: bool, notice: Option<&Offline>) {
        self.keep(|id, at_ms| Change {
            id,
            online,
            at_ms,
            uid: uid.clone(),
            // Who hears of presence hears nothing of addresses.
            session: SlotEntry {
                client: ClientInfo::default(),
                ..session
            },
            code: notice.map(|notice| notice.code),
            by_device: notice.and_then(|notice| notice.by_device.clone()),
        });
    }
}

impl Changes<AccountChange> {
    pub(crate) fn record_news(&self, uid: &Uid, news: AccountNews) {
        self.keep(|id, at_ms| AccountChange {
            id,
            at_ms,
            uid: uid.clone(),
            news,
        });
    }
}

impl<T> Changes<T> {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            run: Uuid::new_v4(),
            clock,
            kept: Mutex::new(Kept {
                newest: 0,
                changes: VecDeque::new(),
            }),
            newest: watch::Sender::new(0),
        }
    }

    fn keep(&self, change: impl FnOnce(ChangeId, u64) -> T) {
        let at_ms = unix_time(&*self.clock).as_millis();
        let at_ms = u64::try_from(at_ms).unwrap_or(u64::MAX);
        let mut kept = self.kept.lock();
        // The number is given under the lock. Otherwise two sessions could record their changes in
        // another order than that of the numbers, and a reader that comes back would miss one.
        kept.newest += 1;
        let now = self.clock.now();
        let number = kept.newest;
        let oldest = if kept.changes.len() == KEPT {
            kept.changes.pop_front()
        } else {
            None
        };
        let change = Arc::new(change(ChangeId::new(self.run, number), at_ms));
        kept.changes.push_back((now, change));
        drop(kept);
        drop(oldest);
        self.newest.send_if_modified(|newest| {
            // Another change may have told its higher number already.
            let is_newer = *newest < number;
            *newest = number.max(*newest);
            is_newer
        });
    }
}

/// Reads the changes of a node in their order. The node keeps its last 10,000 changes, and a reader
/// that is further behind gets a [`Gap`].
#[derive(Debug)]
pub struct ChangeReader<T = Change> {
    changes: Arc<Changes<T>>,
    newest: watch::Receiver<u64>,
    /// The number of the last change that was read.
    read: u64,
    /// The id that the reader named, if it is none of this process.
    unknown: Option<ChangeId>,
}

/// The next changes, or the lack of some.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NextChanges<T = Change> {
    /// The next changes, at least one.
    Changes(Vec<Arc<T>>),
    /// Some changes are no longer kept. The reader continues after them.
    Gap(Gap),
}

impl<T> ChangeReader<T> {
    /// A reader of the changes after this one, or of the changes of the last `recent`.
    pub(crate) fn new(
        changes: &Arc<Changes<T>>,
        after: Option<ChangeId>,
        recent: Duration,
    ) -> Self {
        let newest = changes.newest.subscribe();
        let kept = changes.kept.lock();
        let known = after.and_then(|after| after.number_in(changes.run));
        // A number from the future is none that this process gave.
        let known = known.filter(|number| *number <= kept.newest);
        let read = match (after, known) {
            (None, _) => {
                let now = changes.clock.now();
                let is_recent = |at: Moment| now.since(at) < recent;
                let older = kept.changes.partition_point(|(at, _)| !is_recent(*at));
                kept.newest - (kept.changes.len() - older) as u64
            }
            (_, Some(number)) => number,
            (Some(_), None) => 0,
        };
        drop(kept);
        Self {
            changes: Arc::clone(changes),
            newest,
            read,
            unknown: after.filter(|_| known.is_none()),
        }
    }

    /// The place of this reader: the id of the last change that it has read. A later reader
    /// continues from there.
    #[must_use]
    pub fn position(&self) -> ChangeId {
        ChangeId::new(self.changes.run, self.read)
    }

    /// The next changes, or a gap, if there are any now.
    pub fn try_next(&mut self) -> Option<NextChanges<T>> {
        let kept = self.changes.kept.lock();
        let first = kept.newest + 1 - kept.changes.len() as u64;
        let place = |number| ChangeId::new(self.changes.run, number);
        let after = match self.unknown.take() {
            Some(unknown) => Some(unknown),
            None => (self.read + 1 < first).then(|| place(self.read)),
        };
        if let Some(after) = after {
            self.read = first - 1;
            return Some(NextChanges::Gap(Gap {
                after,
                next: place(first),
                position: place(first - 1),
            }));
        }
        let skipped = usize::try_from(self.read + 1 - first).unwrap_or(usize::MAX);
        let next = kept.changes.iter().skip(skipped).take(READ);
        let next: Vec<_> = next.map(|(_, change)| Arc::clone(change)).collect();
        drop(kept);
        self.read += next.len() as u64;
        (!next.is_empty()).then_some(NextChanges::Changes(next))
    }

    /// Waits for the next changes, or a gap. After the node's shutdown there are none, and the call
    /// never returns.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn next(&mut self) -> NextChanges<T> {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            let read = self.read;
            // The sender lives as long as this reader, so the wait fails never.
            let _ = self.newest.wait_for(|newest| *newest > read).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock_core::ManualClock;

    use super::*;
    use crate::model::ident::{
        Boot, Class, ClientInfo, Device, Generation, NodeId, SessionId, SessionKey,
    };

    fn record(changes: &Changes, number: u64) {
        let key = SessionKey {
            node: NodeId::new("n1").unwrap(),
            boot: Boot::new(1),
            session: Uuid::from_u128(number.into())
                .to_string()
                .parse::<SessionId>()
                .unwrap(),
        };
        let session = SlotEntry {
            key,
            r#gen: Generation::new(number),
            device: Device::new("phone").unwrap(),
            class: Class::none(),
            since_ms: 0,
            client: ClientInfo {
                address: Some([127, 0, 0, 1].into()),
                version: None,
            },
        };
        changes.record_online(&Uid::new("anna").unwrap(), session);
    }

    fn numbers(next: Option<NextChanges>) -> Vec<u64> {
        match next {
            Some(NextChanges::Changes(changes)) => {
                let unknown = ClientInfo::default();
                assert!(changes.iter().all(|it| it.session.client == unknown));
                changes.iter().map(|it| it.session.r#gen.get()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_reader_gets_every_change_or_a_gap() {
        let changes = Arc::new(Changes::new(Arc::new(ManualClock::new())));
        let mut all = ChangeReader::new(&changes, None, Duration::ZERO);
        assert_eq!(all.try_next(), None);
        record(&changes, 1);
        record(&changes, 2);
        let mut late = ChangeReader::new(&changes, None, Duration::ZERO);
        assert_eq!(numbers(all.try_next()), [1, 2]);
        assert_eq!((all.try_next(), late.try_next()), (None, None));
        let (waiting, ()) = tokio::join!(all.next(), async { record(&changes, 3) });
        assert_eq!(numbers(Some(waiting)), [3]);
        let place = |number| ChangeId::new(changes.run, number);
        let mut back = ChangeReader::new(&changes, Some(place(1)), Duration::ZERO);
        assert_eq!(numbers(back.try_next()), [2, 3]);
        assert_eq!(back.position(), place(3));
        // The second half of the changes is kept, and the first half is a gap.
        for number in 4..=2 * KEPT as u64 {
            record(&changes, number);
        }
        let gap = Gap {
            after: place(3),
            next: place(KEPT as u64 + 1),
            position: place(KEPT as u64),
        };
        for mut reader in [
            back,
            ChangeReader::new(&changes, Some(place(3)), Duration::ZERO),
        ] {
            assert_eq!(reader.try_next(), Some(NextChanges::Gap(gap)));
            let mut expected = KEPT as u64;
            while let Some(next) = reader.try_next() {
                for number in numbers(Some(next)) {
                    expected += 1;
                    assert_eq!(number, expected);
                }
            }
            assert_eq!(expected, 2 * KEPT as u64);
        }
        let mut exact = ChangeReader::new(&changes, Some(place(KEPT as u64)), Duration::ZERO);
        assert_eq!(numbers(exact.try_next())[0], KEPT as u64 + 1, "no gap");
    }

    #[test]
    fn a_new_reader_begins_with_the_changes_of_the_last_seconds() {
        let clock = ManualClock::new();
        let changes = Arc::new(Changes::new(Arc::new(clock.clone())));
        let second = Duration::from_secs(1);
        for number in 1..=4 {
            record(&changes, number);
            clock.advance(second);
        }
        for (recent, first) in [(9, vec![1, 2, 3, 4]), (3, vec![3, 4]), (2, vec![4])] {
            let mut reader = ChangeReader::new(&changes, None, second * recent);
            assert_eq!(numbers(reader.try_next()), first);
            assert_eq!(reader.try_next(), None);
        }
        assert_eq!(ChangeReader::new(&changes, None, second).try_next(), None);
    }

    #[test]
    fn an_id_that_this_process_did_not_give_is_a_gap() {
        let changes = Arc::new(Changes::new(Arc::new(ManualClock::new())));
        record(&changes, 1);
        let place = |number| ChangeId::new(changes.run, number);
        for unknown in [ChangeId::new(Uuid::new_v4(), 1), place(2), place(u64::MAX)] {
            let mut reader = ChangeReader::new(&changes, Some(unknown), Duration::ZERO);
            let gap = Gap {
                after: unknown,
                next: place(1),
                position: place(0),
            };
            assert_eq!(reader.try_next(), Some(NextChanges::Gap(gap)));
            assert_eq!(numbers(reader.try_next()), [1]);
            assert_eq!(reader.try_next(), None);
        }
    }
}
