//! What a process knows of the view, and the task that reads it again and again.
//!
//! Invariant: a view is used for at most V after the sending of the read that answered it. All
//! handles of a process share what was read. Each handle has a task of its own on its runtime, so
//! that a blocked program does not lose its locks: the keeper has a handle of its own.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use distlock_core::{Clock, Entry, Error, ErrorKind, Expect, Moment, Result, at_most, sync::Mutex};

use crate::{
    shared::{NAME, Shared},
    view::{Seen, View},
};

/// The longest time that the first read waits for its answer. Later ones wait for a third of V.
const FIRST_READ: Duration = Duration::from_secs(2);

/// The shortest pause between two reads.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);

const NUMBER: &str = "distlock_ring_view";
const MEMBERS: &str = "distlock_ring_members";
const PENDING: &str = "distlock_ring_pending";
const REFUSED: &str = "distlock_ring_refused_total";

/// What a process knows of the view.
#[derive(Debug)]
pub(crate) struct Views(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    seen: Option<Arc<Seen>>,
    /// The highest view of all, and when it was received.
    highest: Option<(View, Moment)>,
    /// The ring store has gone back to an earlier view, or has lost it: nothing is granted before
    /// this moment.
    refused_until: Option<Moment>,
    /// Why the last read brought no view.
    problem: Option<Error>,
}

impl Views {
    /// Nothing is known. The metrics of rings get their help texts.
    pub(crate) fn new() -> Self {
        metrics::describe_gauge!(NUMBER, "Number of the ring's view that was read last");
        metrics::describe_gauge!(MEMBERS, "Active members of the ring");
        metrics::describe_gauge!(PENDING, "Earlier views whose names may still be held");
        metrics::describe_counter!(REFUSED, "Requests that a ring refused, by their reason");
        Self(Mutex::default())
    }

    /// Counts a request that was refused, because its name moves or because there is no view.
    pub(crate) fn count_refusal(reason: &'static str) {
        metrics::counter!(REFUSED, "reason" => reason).increment(1);
    }

    /// The view that may be used now.
    pub(crate) fn usable(&self, now: Moment) -> Result<Arc<Seen>> {
        self.0.lock().usable(now)
    }

    /// The view that was read last, fresh or not.
    pub(crate) fn last(&self) -> Result<Arc<Seen>> {
        let known = self.0.lock();
        let problem = || known.problem.clone().unwrap_or_else(no_view);
        known.seen.clone().ok_or_else(problem)
    }

    /// A third of V, also after a loss of the view: a ring store that was restored must not be
    /// asked by everybody at once. `None` before the first view.
    fn pause(&self) -> Option<Duration> {
        let known = self.0.lock();
        let highest = known.highest.as_ref();
        highest.map(|(view, _)| view.validity() / 3)
    }

    /// Takes the answer to a read.
    fn take(&self, answer: Result<Option<Entry>>, sent: Moment, received: Moment) -> Result<()> {
        let read = answer.and_then(|entry| match entry {
            Some(entry) => Seen::new(entry, sent, received),
            None => Err(no_view()),
        });
        let known = &mut *self.0.lock();
        let seen = match read {
            Ok(seen) => seen,
            Err(error) => {
                known.problem = Some(error.clone());
                return Err(error);
            }
        };
        known.problem = None;
        if let Some((highest, at)) = &known.highest {
            let is_ours = seen.view.ring == highest.ring && seen.view.number >= highest.number;
            let is_same = seen.view.number != highest.number || seen.view.is_same(highest);
            // Two reads can overtake each other. One that was sent before the highest view came in
            // proves nothing.
            let is_behind = highest.confirmed && !seen.view.confirmed;
            if sent < *at && (!is_ours || is_same && is_behind && highest.is_same(&seen.view)) {
                return Ok(());
            }
            if !(is_ours && is_same) {
                let before = known.refused_until.replace(received + highest.quarantine());
                // Each read finds an earlier view again, until the members are changed.
                if before.is_none_or(|until| until < received) {
                    tracing::warn!(
                        was = highest.number,
                        is = seen.view.number,
                        "the ring store has lost its view or has gone back to an earlier one"
                    );
                }
            }
            // An earlier view of the same ring is never used again.
            if seen.view.ring == highest.ring && !(is_ours && is_same) {
                known.seen = None;
                known.problem = Some(unavailable(format!(
                    "the ring store has gone back from view {} to view {}: if it was restored from \
                     a backup, run `distlock ring reset`",
                    highest.number, seen.view.number
                )));
                return Ok(());
            }
        }
        known.highest = Some((seen.view.clone(), received));
        let is_later = |old: &Arc<Seen>| old.view != seen.view || old.until < seen.until;
        if known.seen.as_ref().is_none_or(is_later) {
            metrics::gauge!(NUMBER).set(as_float(seen.view.number));
            metrics::gauge!(MEMBERS).set(as_float(seen.view.members.len()));
            let pending = seen.view.pending.iter();
            let live = pending.filter(|it| !seen.left(it, received).is_zero());
            metrics::gauge!(PENDING).set(as_float(live.count()));
            known.seen = Some(Arc::new(seen));
        }
        Ok(())
    }
}

impl Known {
    fn usable(&self, now: Moment) -> Result<Arc<Seen>> {
        if let Some(until) = self.refused_until
            && now < until
        {
            let left = until.since(now);
            let problem = format!(
                "the ring store has lost its view or has gone back to an earlier one: nothing is \
                 granted for {:.1} s",
                left.as_secs_f64()
            );
            return Err(unavailable(problem).retry_in(left));
        }
        match &self.seen {
            Some(seen) if now < seen.until => Ok(Arc::clone(seen)),
            _ => {
                let problem = "the view of the ring was not read in time, so nothing is granted";
                let error = unavailable(problem);
                Err(match &self.problem {
                    Some(cause) => error.caused_by(cause.clone()),
                    None => error,
                })
            }
        }
    }
}

/// For a metric, which shows no more digits.
fn as_float(number: impl TryInto<u64>) -> f64 {
    number.try_into().unwrap_or(u64::MAX) as f64
}

fn unavailable(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, problem).on(NAME)
}

pub(crate) fn no_view() -> Error {
    let problem = "the ring store has no view: make the ring with `distlock ring init`";
    Error::new(ErrorKind::InvalidConfig, problem).on(NAME)
}

/// Reads the view once, and confirms it if nobody has.
pub(crate) async fn read(shared: &Shared) -> Result<()> {
    let key = View::key()?;
    let (clock, store) = (&*shared.clock, &shared.ring_store.records);
    let limit = shared.views.pause().unwrap_or(FIRST_READ);
    let late = || unavailable("the ring store did not answer in time");
    loop {
        let sent = clock.now();
        let answer = at_most(clock, limit, store.get(&key)).await;
        let answer = answer.unwrap_or_else(|| Err(late()));
        shared.views.take(answer, sent, clock.now())?;
        match shared.views.last() {
            Ok(seen) if !seen.view.confirmed => {
                let confirmed = at_most(clock, limit, confirm(shared, &seen)).await;
                confirmed.unwrap_or_else(|| Err(late()))?;
            }
            _ => return Ok(()),
        }
    }
}

/// The second write of a view. Its sender may have died, so everybody who reads a view unconfirmed
/// does it. Whoever comes later finds another version.
async fn confirm(shared: &Shared, seen: &Seen) -> Result<()> {
    let stored = seen.view.clone().confirmed().stored()?;
    let expect = Expect::Version(seen.entry.version);
    shared
        .ring_store
        .records
        .put(&View::key()?, &stored, expect)
        .await?;
    Ok(())
}

/// Reads the view three times in V, until the handle is closed or dropped.
pub(crate) async fn keep_reading(shared: Weak<Shared>, clock: Arc<dyn Clock>) {
    loop {
        let pause = {
            let Some(shared) = shared.upgrade() else {
                return;
            };
            let begun = clock.now();
            match read(&shared).await {
                Err(error) if error.kind() == ErrorKind::Closed => return,
                Err(error) => tracing::debug!(%error, "the view of the ring cannot be read"),
                Ok(()) => {}
            }
            let third = shared.views.pause().unwrap_or(SHORTEST_PAUSE);
            third.saturating_sub(clock.now().since(begun))
        };
        clock.sleep(pause.max(SHORTEST_PAUSE)).await;
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use distlock_backend_kit::{Drivers, MemberHandle, Members, Spawner};
    use distlock_conformance::RecordsLayer;
    use distlock_core::{ManualClock, RecordKey, Records, SystemClock, Written};
    use distlock_memory::Memory;

    use super::*;
    use crate::{
        config::check_member,
        leases::Leases,
        view::tests::{read, view_of},
    };

    /// Records whose writes are not answered.
    #[derive(Clone, Debug)]
    struct SilentWrites(Arc<dyn Records>);

    #[async_trait]
    impl RecordsLayer for SilentWrites {
        fn below(&self) -> &Arc<dyn Records> {
            &self.0
        }

        async fn put(&self, _: &RecordKey, _: &[u8], _: Expect) -> Result<Written> {
            std::future::pending().await
        }
    }

    /// The view would otherwise become too old, and its names could not be locked any more.
    #[tokio::test]
    async fn a_confirmation_without_an_answer_does_not_stop_the_reads() {
        let clock = Arc::new(ManualClock::new());
        let memory = Memory::new(Arc::<ManualClock>::clone(&clock));
        let (records, key) = (memory.records(), View::key().unwrap());
        let drivers = Drivers::new();
        let members = Members::open(Vec::new(), &drivers, 0, check_member);
        let members = members.await.unwrap();
        let shared = Shared {
            capabilities: members.weakest_capabilities(NAME),
            members,
            ring_store: MemberHandle {
                lock: memory.lock(),
                records: SilentWrites(Arc::clone(&records)).into_records(),
            },
            views: Arc::new(Views::new()),
            leases: Arc::new(Leases::default()),
            clock: Arc::<ManualClock>::clone(&clock),
            spawner: Spawner::default(),
        };
        let first = view_of("ab");
        let write = async |view: &View, expect| {
            let written = records.put(&key, &view.stored().unwrap(), expect).await;
            match written.unwrap() {
                Written::Stored(version) => version,
                Written::Conflict => panic!("another writer"),
            }
        };
        let version = write(&first, Expect::Absent).await;
        super::read(&shared).await.unwrap();
        let unconfirmed = first.next(Duration::ZERO, vec!["a".to_owned()], 0);
        write(&unconfirmed, Expect::Version(version)).await;
        let third = first.validity() / 3;
        let reading = async { super::read(&shared).await };
        let both = async { tokio::join!(reading, async { clock.advance(third) }) };
        let ended = at_most(&SystemClock, Duration::from_secs(10), both).await;
        let (read, ()) = ended.expect("the read ends although its write has no answer");
        assert_eq!(read.unwrap_err().kind(), ErrorKind::Unavailable);
        // The view may be used. Its names that move wait, because nobody has confirmed it.
        let seen = shared.views.usable(clock.now()).unwrap();
        assert_eq!((seen.view.number, seen.view.confirmed), (2, false));
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn take(views: &Views, view: &View, sent: u64, received: u64) {
        let entry = read(view, Duration::from_secs(100), sent, received).entry;
        views.take(Ok(Some(entry)), at(sent), at(received)).unwrap();
    }

    fn number(views: &Views, now: u64) -> Option<u64> {
        views.usable(at(now)).ok().map(|seen| seen.view.number)
    }

    #[test]
    fn a_view_is_used_for_its_validity_and_no_longer() {
        let views = Views::new();
        assert_eq!(number(&views, 0), None);
        take(&views, &view_of("ab"), 10, 11);
        assert_eq!((number(&views, 11), number(&views, 12)), (Some(1), None));
        // An answer to an earlier read takes nothing away.
        take(&views, &view_of("ab"), 11, 11);
        take(&views, &view_of("ab"), 9, 11);
        assert_eq!((number(&views, 12), number(&views, 13)), (Some(1), None));
        // A failed read neither.
        let failed = views.take(Err(unavailable("away")), at(12), at(12));
        assert!(failed.is_err());
        assert_eq!(number(&views, 12), Some(1));
        let error = views.usable(at(13)).unwrap_err();
        assert!(error.to_string().contains("away"), "{error}");
    }

    #[test]
    fn an_earlier_view_or_another_with_the_same_number_stops_all_grants() {
        let mut second = view_of("ab");
        second.number = 2;
        for wrong in [view_of("ab"), {
            let mut other = view_of("abc");
            other.number = 2;
            other
        }] {
            let views = Views::new();
            take(&views, &second, 10, 10);
            take(&views, &wrong, 11, 11);
            assert_eq!(number(&views, 11), None, "{wrong:?}");
            // Also when the leases have ended, and the ring store is not asked more often.
            let error = views.usable(at(30)).unwrap_err().to_string();
            assert!(error.contains("gone back from view 2"), "{error}");
            assert_eq!(views.pause(), Some(Duration::from_millis(2000) / 3));
            // The view that was there before comes back.
            take(&views, &second, 12, 12);
            assert_eq!(number(&views, 12), None);
            take(&views, &second, 18, 18);
            assert_eq!((number(&views, 18), number(&views, 19)), (None, Some(2)));
        }
        // An answer that was overtaken says nothing.
        let views = Views::new();
        take(&views, &second, 10, 11);
        take(&views, &view_of("ab"), 10, 11);
        assert_eq!(number(&views, 11), Some(2));
    }

    #[test]
    fn another_ring_grants_nothing_before_the_leases_of_this_one_have_ended() {
        let views = Views::new();
        take(&views, &view_of("ab"), 10, 10);
        let mut other = view_of("abc");
        other.ring = uuid::Uuid::max();
        take(&views, &other, 11, 11);
        assert_eq!(number(&views, 11), None);
        take(&views, &other, 18, 18);
        assert_eq!((number(&views, 18), number(&views, 19)), (None, Some(1)));
    }
}
