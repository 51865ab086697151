//! The fixture: a lock over records, with a simulated network that loses chosen writes.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use distlock_core::{
    AcquireRequest, Attempt, Deleted, DistLock, Entry, Error, ErrorKind, Expect, Grant,
    HolderLabel, Lease, LockName, ManualClock, OwnerId, RecordKey, Records, ReleaseOutcome, Result,
    Ttl, Version, Written, sync::Mutex,
};
use distlock_kv::KvLock;
use distlock_memory::Memory;

pub(crate) const TTL: Duration = Duration::from_secs(5);
pub(crate) const RELEASED: ReleaseOutcome = ReleaseOutcome::Released {
    others_waiting: None,
};

/// A fault of one write.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// The write happens, and its answer is lost.
    Unanswered,
    /// The write does not reach the store, and the caller gets an unknown outcome.
    Lost,
    /// The server refuses the write, as when it is unavailable. The write does not happen.
    Refused,
}

/// Records behind a network that loses or refuses writes.
#[derive(Debug)]
pub(crate) struct FaultyRecords {
    /// The store, which a test may replace by an empty one.
    pub(crate) inner: Mutex<Arc<dyn Records>>,
    /// The faults of the next writes, in order. Later writes meet no fault.
    pub(crate) faults: Mutex<VecDeque<Option<Fault>>>,
    /// The number of reads so far.
    pub(crate) reads: AtomicUsize,
    /// The number of writes and of scans so far.
    pub(crate) writes: AtomicUsize,
    pub(crate) scans: AtomicUsize,
    /// Whether the records report their age.
    pub(crate) ages: bool,
}

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fault")
    }
}

impl FaultyRecords {
    fn inner(&self) -> Arc<dyn Records> {
        Arc::clone(&self.inner.lock())
    }

    /// Sets the faults of the next writes.
    pub(crate) fn set_next_faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().extend(faults.into_iter().map(Some));
    }

    /// Runs a write with the next fault of the list, or without a fault if the list is empty.
    pub(crate) async fn run_with_next_fault<T>(
        &self,
        write: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let fault = self.faults.lock().pop_front().flatten();
        let unknown = || Error::new(ErrorKind::OutcomeUnknown, "no answer");
        match fault {
            None => write.await,
            Some(Fault::Unanswered) => {
                write.await?;
                Err(unknown())
            }
            Some(Fault::Lost) => Err(unknown()),
            Some(Fault::Refused) => Err(Error::new(ErrorKind::Unavailable, "not now")),
        }
    }
}

#[async_trait]
impl Records for FaultyRecords {
    fn backend(&self) -> &'static str {
        "far"
    }

    fn tells_ages(&self) -> bool {
        self.ages
    }

    async fn reopen(&self) -> Result<Arc<dyn Records>> {
        self.inner().reopen().await
    }

    async fn get(&self, key: &RecordKey) -> Result<Option<Entry>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner().get(key).await
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.inner().get_many(keys).await
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        self.run_with_next_fault(self.inner().put(key, value, expect))
            .await
    }

    async fn delete(&self, key: &RecordKey, expect: Version) -> Result<Deleted> {
        self.run_with_next_fault(self.inner().delete(key, expect))
            .await
    }

    async fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> Result<Vec<(RecordKey, Entry)>> {
        self.scans.fetch_add(1, Ordering::SeqCst);
        self.inner().scan(prefix, after, limit).await
    }

    async fn close(&self) {
        // `KvLock` must not close records that were passed to it.
        panic!("the test that opened the records closes them");
    }
}

pub(crate) struct Fixture {
    pub(crate) clock: ManualClock,
    pub(crate) records: Arc<FaultyRecords>,
    pub(crate) lock: KvLock,
}

/// Creates a lock over records with one clock for both, and no faults yet.
pub(crate) async fn fixture() -> Fixture {
    let clock = ManualClock::new();
    let records = Arc::new(FaultyRecords {
        inner: Mutex::new(Memory::new(Arc::new(clock.clone())).records()),
        faults: Mutex::default(),
        reads: AtomicUsize::new(0),
        writes: AtomicUsize::new(0),
        scans: AtomicUsize::new(0),
        ages: true,
    });
    let lock = KvLock::new(Arc::clone(&records) as Arc<dyn Records>).unwrap();
    let lock = lock.with_clock(Arc::new(clock.clone())).with_seed(7);
    // The first operation writes the store's epoch. That operation is done here, so that no test's
    // fault hits it.
    lock.inspect(&name("x")).await.unwrap();
    Fixture {
        clock,
        records,
        lock,
    }
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub(crate) fn key(text: &str) -> RecordKey {
    RecordKey::new(text).unwrap()
}

pub(crate) fn ttl() -> Ttl {
    Ttl::new(TTL).unwrap()
}

pub(crate) fn request(text: &str) -> AcquireRequest {
    let holder = HolderLabel::new("ci@host:1").unwrap();
    AcquireRequest::new(name(text), OwnerId::new(), ttl(), holder)
}

pub(crate) fn lease(request: &AcquireRequest, grant: &Grant) -> Lease {
    Lease::new(request.name.clone(), request.owner, Some(grant.token))
}

impl Fixture {
    /// Replaces the store by an empty one, as after a loss of all its data. Time has passed since
    /// the last write, as with a real store.
    pub(crate) fn lose_all_data(&self) {
        self.clock.advance(Duration::from_millis(1));
        let empty = Memory::new(Arc::new(self.clock.clone())).records();
        *self.records.inner.lock() = empty;
    }

    /// Acquires a lock, which must be free or already belong to the request's owner.
    pub(crate) async fn acquire(&self, request: &AcquireRequest) -> Grant {
        let attempt = self.lock.try_acquire(request).await.unwrap();
        attempt.acquired().expect("it is free")
    }

    /// Makes an attempt as a new owner. Returns whether the attempt found the lock held.
    pub(crate) async fn is_busy(&self, text: &str) -> bool {
        let attempt = self.lock.try_acquire(&request(text)).await.unwrap();
        matches!(attempt, Attempt::Busy(Some(_)))
    }

    /// Returns the number of store operations so far.
    pub(crate) fn operations(&self) -> usize {
        [
            &self.records.reads,
            &self.records.writes,
            &self.records.scans,
        ]
        .map(|count| count.load(Ordering::SeqCst))
        .iter()
        .sum()
    }

    /// Reads the record under a key, for example `lock/NAME`.
    pub(crate) async fn read_record(&self, text: &str) -> Option<Entry> {
        self.records.get(&key(text)).await.unwrap()
    }
}
