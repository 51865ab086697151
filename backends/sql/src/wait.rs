//! Waiting: one poller per process for all who wait, and an immediate wake-up inside the process.

use std::{
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Contender, FencingToken, Grant, HolderInfo, LockName, Moment, Result,
    Sleep,
};
use tokio::sync::Notify;

use crate::{
    dialect::{Dialect, LockRow},
    helper::Helper,
    op::{Answer, Op},
    store::Store,
};

/// 16 polls a second on average, and 19 at most: what writes in the same file would otherwise wait for.
#[cfg(feature = "sqlite")]
const STEADY: Pace = Pace {
    first: 57_000..68_000,
    last: 57_000..68_000,
    at_least: Duration::from_micros(52_500),
};

/// Where a poll holds nobody up: more often right after something changed.
#[cfg(feature = "mysql")]
const ADAPTIVE: Pace = Pace {
    first: 10_000..15_000,
    last: 57_000..68_000,
    at_least: Duration::from_millis(10),
};

/// Where the store tells of releases: only what was missed is found by polling.
#[cfg(feature = "postgres")]
const PUSHED: Pace = Pace {
    first: 900_000..1_100_000,
    last: 900_000..1_100_000,
    at_least: Duration::from_micros(52_500),
};

/// After a poll that failed.
const AFTER_FAILURE: Duration = Duration::from_millis(250);

/// How long a held row is marked as wanted, and how little may be left before the mark is renewed: one write in 4 s.
const WANTED_FOR: Duration = Duration::from_secs(5);
pub(crate) const RENEW_WANTED: Duration = Duration::from_secs(1);

/// How often a waiter looks whether somebody still polls and listens for it.
const SEE_TO_IT: Duration = Duration::from_secs(1);

/// How long a poller may be about one poll before it is taken to be gone with its runtime.
const ASKING: Duration = Duration::from_secs(10);

/// How often a listener says that it is there.
const STILL_LISTENING: Duration = Duration::from_secs(5);

/// Longest sleep of one wait. Waking without a reason is allowed; a duration near the largest one overflows clocks.
const LONGEST: Duration = Duration::from_secs(3600);

/// All handles of this process on one store: who waits, when the store was last asked, how much it was asked.
pub(crate) struct Group {
    backend: &'static str,
    /// Tells this process's marks from others'.
    mark: i64,
    statements: AtomicU64,
    retries: AtomicU64,
    /// Told when the next poll is due sooner than it was.
    sooner: Notify,
    // A std mutex: held for map operations only.
    waiting: Mutex<Waiting>,
}

struct Waiting {
    by_name: HashMap<LockName, Awaited>,
    next_poll: Option<Moment>,
    pace: Pace,
    /// Polls since something changed.
    quiet: u32,
}

/// How often the store is asked. Ranges are in microseconds, and wide enough to be in step with no other process.
#[derive(Clone, Debug)]
struct Pace {
    /// From one poll to the next when something has just changed.
    first: Range<u64>,
    /// The same when nothing has changed for a while.
    last: Range<u64>,
    /// No poll follows another sooner than this, also when a lease ends.
    at_least: Duration,
}

/// A lock that somebody waits for.
#[derive(Default)]
struct Awaited {
    waiters: Vec<Arc<Waiter>>,
    /// What the last poll saw.
    token: Option<FencingToken>,
}

/// One contender.
struct Waiter {
    signal: Notify,
    /// Whether it sleeps now. Changed under the group's mutex only.
    asleep: AtomicBool,
}

impl Pace {
    /// How long from one poll to the next, when so many have seen no change.
    fn every(&self, quiet: u32) -> Range<u64> {
        let grown = |first: u64, last: u64| first.saturating_mul(1 << quiet.min(16)).min(last);
        grown(self.first.start, self.last.start)..grown(self.first.end, self.last.end)
    }

    fn is_adaptive(&self) -> bool {
        self.first != self.last
    }
}

impl Group {
    /// For a store that is asked at a steady pace.
    #[cfg(feature = "sqlite")]
    pub(crate) fn steady(backend: &'static str) -> Arc<Self> {
        Self::polled(backend, STEADY)
    }

    /// For a store that is asked more often right after something changed.
    #[cfg(feature = "mysql")]
    pub(crate) fn adaptive(backend: &'static str) -> Arc<Self> {
        Self::polled(backend, ADAPTIVE)
    }

    /// For a store that tells of releases.
    #[cfg(feature = "postgres")]
    pub(crate) fn pushed(backend: &'static str) -> Arc<Self> {
        Self::polled(backend, PUSHED)
    }

    fn polled(backend: &'static str, pace: Pace) -> Arc<Self> {
        Arc::new(Self {
            backend,
            mark: fastrand::i64(1..),
            statements: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            sooner: Notify::new(),
            waiting: Mutex::new(Waiting {
                by_name: HashMap::new(),
                next_poll: None,
                pace,
                quiet: 0,
            }),
        })
    }

    pub(crate) fn mark(&self) -> i64 {
        self.mark
    }

    /// Counts a statement.
    pub(crate) fn count(&self, operation: &'static str) {
        self.statements.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("distlock_store_operations_total", "backend" => self.backend, "operation" => operation)
            .increment(1);
    }

    /// Statements sent so far by all handles of this process.
    pub(crate) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// Counts a statement that the store broke off for others' sake and that is sent again.
    pub(crate) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("distlock_store_retries_total", "backend" => self.backend).increment(1);
    }

    /// Statements that were sent again so far.
    pub(crate) fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// Wakes those who wait for a lock that was freed, as far as is known.
    pub(crate) fn freed(&self, name: &LockName) {
        self.waiting().wake(name);
    }

    /// Whether somebody of this process waits for it at the store: with another handle than the one that holds it.
    pub(crate) fn anybody_waits(&self, name: &LockName) -> bool {
        self.waiting().by_name.contains_key(name)
    }

    /// Wakes all who wait, because any lock may have been freed.
    pub(crate) fn freed_any(&self) {
        for awaited in self.waiting().by_name.values() {
            awaited.wake();
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, name: &LockName, now: Moment) -> Arc<Waiter> {
        let waiter = Arc::new(Waiter {
            signal: Notify::new(),
            asleep: AtomicBool::new(false),
        });
        let mut waiting = self.waiting();
        let awaited = waiting.by_name.entry(name.clone()).or_default();
        awaited.waiters.push(Arc::clone(&waiter));
        if waiting.changed(now) {
            self.sooner.notify_one();
        }
        waiter
    }

    fn leave(&self, name: &LockName, waiter: &Arc<Waiter>) {
        let mut waiting = self.waiting();
        if let Some(Awaited { waiters, .. }) = waiting.by_name.get_mut(name) {
            waiters.retain(|other| !Arc::ptr_eq(other, waiter));
            if waiters.is_empty() {
                waiting.by_name.remove(name);
            }
        }
    }
}

impl Waiting {
    /// How long until the store may be asked again.
    fn pause(&mut self, now: Moment) -> Duration {
        // A group may be shared by handles with different clocks, in tests: a time far off is another clock's.
        match self.next_poll.map(|next| next.since(now)) {
            Some(pause)
                if pause <= AFTER_FAILURE.max(Duration::from_micros(self.pace.last.end)) =>
            {
                pause
            }
            _ => {
                let pause = self.every();
                self.next_poll = Some(now + pause);
                pause
            }
        }
    }

    /// Takes the poll that is due, and the names to ask for. `None` when another handle took it.
    fn claim(&mut self, now: Moment) -> Option<Vec<LockName>> {
        if self.next_poll.is_some_and(|next| next > now) {
            return None;
        }
        self.next_poll = Some(now + self.every());
        let awaited = self.by_name.iter();
        Some(
            awaited
                .filter(|(_, awaited)| awaited.waiters.iter().any(|waiter| waiter.is_asleep()))
                .map(|(name, _)| name.clone())
                .collect(),
        )
    }

    /// Wakes those whose lock is free, and says which held rows should be marked as wanted.
    fn report(
        &mut self,
        polled: Moment,
        names: Vec<LockName>,
        mut rows: HashMap<LockName, Result<LockRow>>,
    ) -> Vec<LockName> {
        let mut unmarked = Vec::new();
        let mut earliest = Duration::MAX;
        let mut changed = false;
        for name in names {
            match rows.remove(&name) {
                Some(Ok(row)) if row.held.is_some() => {
                    if let Some(awaited) = self.by_name.get_mut(&name) {
                        let before = awaited.token.replace(row.last_token);
                        changed |= before.is_some_and(|before| before != row.last_token);
                    }
                    earliest = earliest.min(row.free_in());
                    // The mark of another process that waits is as good: it goes before it is ours to step aside for.
                    let marked = row
                        .wanted
                        .is_some_and(|(left, ours)| !ours || left > RENEW_WANTED);
                    if !marked {
                        unmarked.push(name);
                    }
                }
                // Free, or gone, or unreadable: its next attempt will tell.
                _ => {
                    changed = true;
                    self.wake(&name);
                }
            }
        }
        if changed {
            self.changed(polled);
        } else {
            self.quiet = self.quiet.saturating_add(1);
        }
        if let Some(next) = self.next_poll {
            let expiry = polled + earliest;
            self.next_poll = Some(next.min(expiry.max(polled + self.pace.at_least)));
        }
        unmarked
    }

    /// Something may change again soon. Says whether the next poll is due sooner than it was.
    fn changed(&mut self, now: Moment) -> bool {
        if !self.pace.is_adaptive() {
            return false;
        }
        self.quiet = 0;
        let soon = now + self.every();
        let sooner = self.next_poll.is_some_and(|next| next > soon);
        if sooner {
            self.next_poll = Some(soon);
        }
        sooner
    }

    fn every(&self) -> Duration {
        Duration::from_micros(fastrand::u64(self.pace.every(self.quiet)))
    }

    fn wake(&self, name: &LockName) {
        if let Some(awaited) = self.by_name.get(name) {
            awaited.wake();
        }
    }
}

impl Awaited {
    fn wake(&self) {
        for waiter in &self.waiters {
            waiter.signal.notify_one();
        }
    }
}

impl Waiter {
    fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("names", &self.waiting().by_name.len())
            .field("statements", &self.statements())
            .finish_non_exhaustive()
    }
}

/// A place among those who wait for a lock.
pub(crate) struct SqlContender<D: Dialect> {
    store: Arc<Store<D>>,
    request: AcquireRequest,
    waiter: Arc<Waiter>,
    /// When the present lease ends unless it is renewed: a store that tells of releases does not tell of that.
    expiry: Option<Moment>,
}

impl<D: Dialect> SqlContender<D> {
    pub(crate) fn new(store: Arc<Store<D>>, request: AcquireRequest) -> Self {
        let waiter = {
            let dialect = store.dialect();
            dialect.group().join(&request.name, dialect.clock().now())
        };
        Self {
            store,
            request,
            waiter,
            expiry: None,
        }
    }

    /// Sees to it that the store tells when the lock is free.
    async fn arm(&mut self, asked: Moment, holder: Option<&HolderInfo>) {
        let dialect = self.store.dialect();
        self.expiry = holder
            .and_then(|holder| holder.expires_in)
            .map(|left| asked + left);
        match dialect.arm(&self.request.name, WANTED_FOR).await {
            Ok(true) => {}
            // Freed meanwhile, which nobody was told.
            Ok(false) => self.waiter.signal.notify_one(),
            Err(error) => tracing::debug!(%error, "a row was not marked as wanted"),
        }
    }
}

#[async_trait]
impl<D: Dialect> Contender for SqlContender<D> {
    async fn attempt(&mut self) -> Result<Attempt<Grant>> {
        let asked = self.store.dialect().clock().now();
        match self.store.submit(Op::Acquire(self.request.clone())).await? {
            Answer::Acquired(attempt) => {
                if let Attempt::Busy(holder) = &attempt
                    && D::PUSHES
                {
                    self.arm(asked, holder.as_ref()).await;
                }
                Ok(attempt)
            }
            other => Err(other.unexpected()),
        }
    }

    async fn wait(&mut self, at_most: Duration) {
        let _asleep = Asleep::new(&self.store, &self.waiter);
        let clock = self.store.dialect().clock();
        let until = clock.now() + at_most.min(LONGEST);
        let until = self.expiry.map_or(until, |expiry| until.min(expiry));
        loop {
            self.store.poll();
            if D::PUSHES {
                self.store.listen();
            }
            let left = until.since(clock.now());
            tokio::select! {
                () = self.waiter.signal.notified() => return,
                () = clock.sleep(left.min(SEE_TO_IT)) => {}
            }
            if left <= SEE_TO_IT {
                return;
            }
        }
    }

    async fn leave(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl<D: Dialect> Drop for SqlContender<D> {
    fn drop(&mut self) {
        let group = self.store.dialect().group();
        group.leave(&self.request.name, &self.waiter);
    }
}

/// While a waiter sleeps.
struct Asleep<'a, D: Dialect> {
    store: &'a Store<D>,
    waiter: &'a Waiter,
}

impl<'a, D: Dialect> Asleep<'a, D> {
    fn new(store: &'a Store<D>, waiter: &'a Waiter) -> Self {
        let _waiting = store.dialect().group().waiting();
        waiter.asleep.store(true, Ordering::Relaxed);
        store.asleep.fetch_add(1, Ordering::Relaxed);
        Self { store, waiter }
    }
}

impl<D: Dialect> Drop for Asleep<'_, D> {
    fn drop(&mut self) {
        let _waiting = self.store.dialect().group().waiting();
        self.waiter.asleep.store(false, Ordering::Relaxed);
        self.store.asleep.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Asks the store for all names that anybody in this process waits for, until nobody waits with this handle any more.
pub(crate) async fn poll<D: Dialect>(store: Arc<Store<D>>, turn: u64) {
    let dialect = store.dialect();
    let (clock, group) = (dialect.clock(), dialect.group());
    let place = Place(&store.poller, turn);
    loop {
        let pause = group.waiting().pause(clock.now());
        if !store.poller.is_mine(turn, clock.now() + pause) {
            return;
        }
        tokio::select! {
            () = clock.sleep(pause) => {}
            () = group.sooner.notified() => continue,
        }
        let names = {
            let mut waiting = group.waiting();
            if store.asleep.load(Ordering::Relaxed) == 0 {
                // Under the mutex, so that whoever falls asleep next sees that nobody polls.
                drop(place);
                return;
            }
            match waiting.claim(clock.now()) {
                Some(names) if !names.is_empty() => names,
                _ => continue,
            }
        };
        let polled = clock.now();
        store.poller.is_mine(turn, polled + ASKING);
        match dialect.look(&names).await {
            Ok(rows) => {
                let rows = rows.into_iter().collect();
                let unmarked = group.waiting().report(polled, names, rows);
                if !unmarked.is_empty()
                    && let Err(error) = dialect.want(&unmarked, WANTED_FOR).await
                {
                    tracing::debug!(%error, "rows were not marked as wanted");
                }
            }
            Err(error) => {
                tracing::debug!(%error, waiters = names.len(), "polling failed");
                group.waiting().next_poll = Some(clock.now() + AFTER_FAILURE);
            }
        }
    }
}

/// Lets the store tell of releases, for as long as the handle is there.
pub(crate) async fn listen<D: Dialect>(store: Weak<Store<D>>, turn: u64) {
    let _place = Listening(Weak::clone(&store), turn);
    // The handle is not kept alive meanwhile.
    while let Some(mut told) = store.upgrade().map(|store| store.dialect().listen()) {
        let mut lost = false;
        while !lost {
            let Some(pause) = still_listening(&store, turn, STILL_LISTENING) else {
                return;
            };
            lost = tokio::select! {
                () = &mut told => true,
                () = pause => false,
            };
        }
        drop(told);
        let Some(pause) = still_listening(&store, turn, AFTER_FAILURE) else {
            return;
        };
        pause.await;
    }
}

/// A pause, after which the listener is heard of again. `None` when it is not needed any more.
fn still_listening<D: Dialect>(
    store: &Weak<Store<D>>,
    turn: u64,
    pause: Duration,
) -> Option<Sleep> {
    let store = store.upgrade()?;
    let clock = store.dialect().clock();
    let mine = store.listener.is_mine(turn, clock.now() + pause);
    mine.then(|| clock.sleep(pause))
}

/// Notes that nobody listens any more, also when the runtime is shut down.
struct Listening<D: Dialect>(Weak<Store<D>>, u64);

impl<D: Dialect> Drop for Listening<D> {
    fn drop(&mut self) {
        if let Some(store) = self.0.upgrade() {
            store.listener.leave(self.1);
        }
    }
}

/// Notes the end of a poller, also when its runtime is shut down.
struct Place<'a>(&'a Helper, u64);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

#[cfg(all(
    test,
    any(feature = "mysql", all(feature = "sqlite", feature = "postgres"))
))]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "mysql")]
    fn polls_grow_rarer_until_something_changes() {
        let spans: Vec<_> = (0..5).map(|quiet| ADAPTIVE.every(quiet)).collect();
        assert_eq!(
            spans,
            [
                10_000..15_000,
                20_000..30_000,
                40_000..60_000,
                57_000..68_000,
                57_000..68_000,
            ]
        );
        for quiet in 0..100 {
            let span = ADAPTIVE.every(quiet);
            assert!(span.start < span.end, "{quiet}");
            assert!(span.start >= ADAPTIVE.first.start && span.end <= ADAPTIVE.last.end);
        }
        assert_eq!(ADAPTIVE.every(u32::MAX), ADAPTIVE.last);
    }

    #[test]
    #[cfg(all(feature = "sqlite", feature = "postgres"))]
    fn a_steady_pace_stays_as_it_is() {
        for pace in [STEADY, PUSHED] {
            assert!((0..100).all(|quiet| pace.every(quiet) == pace.last));
        }
    }
}
