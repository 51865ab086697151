//! What a process sees of its own shared locks when a runtime stops, when a request hangs, and
//! after a release. The conformance suite has what the stores have in common.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use async_trait::async_trait;
use distlock_conformance::RecordsLayer;
use distlock_core::{
    Clock as _, Deleted, Ended, Entry, ErrorKind, LossReason, RecordKey, Records, Result, Store,
    SystemClock,
};
use distlock_memory::Memory;
use distlock_recipes::shared::{RwLock, Semaphore, inspect};
use futures_util::poll;

/// The limit for what must happen at once.
const SOON: Duration = Duration::from_secs(10);

fn store() -> Store {
    let memory = Memory::default();
    Store::new(memory.lock(), memory.records())
}

#[tokio::test]
async fn a_watch_tells_a_release_from_its_beginning() {
    let lock = RwLock::new(&store(), "catalogue").unwrap();
    let guard = lock.read().acquire().await.unwrap();
    let watch = guard.watch();
    assert!(watch.check().is_ok());
    {
        let mut release = Box::pin(guard.release());
        assert!(poll!(&mut release).is_pending());
        let error = watch.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld, "{error}");
        assert!(error.to_string().contains("catalogue"), "{error}");
        assert!(release.await.is_clean());
    }
    assert_eq!((watch.ended().await, watch.loss()), (Ended::Released, None));
}

#[tokio::test]
async fn a_drop_of_a_guard_is_no_loss() {
    let lock = RwLock::new(&store(), "x").unwrap();
    let ttl = Duration::from_millis(500);
    let guard = lock.write().ttl(ttl).acquire().await.unwrap();
    let watch = guard.watch();
    drop(guard);
    let ended = tokio::time::timeout(SOON, watch.ended()).await;
    assert_eq!(ended, Ok(Ended::Released));
    // Nor is the end of the lease, which nobody renews any more.
    SystemClock.sleep(ttl).await;
    assert_eq!((watch.ended().await, watch.loss()), (Ended::Released, None));
    assert_eq!(watch.check().unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test]
async fn an_extend_that_is_refused_or_shorter_keeps_the_lock() {
    let memory = Memory::default();
    let records = memory.records();
    let store = Store::new(memory.lock(), Arc::clone(&records));
    let lock = RwLock::new(&store, "x").unwrap();
    let ttl = Duration::from_secs(20);
    let guard = lock.read().ttl(ttl).acquire().await.unwrap();
    let error = guard.extend(Duration::MAX).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(guard.is_valid() && guard.ttl().duration() == ttl);

    // The entry was last seen longer ago than the new TTL.
    let short = Duration::from_secs(1);
    let clock = SystemClock;
    clock.sleep(short).await;
    guard.extend(short).await.unwrap();
    assert!(guard.is_valid(), "lost: {:?}", guard.watch().loss());
    // The task looks for the entry as often as the shorter TTL demands.
    let key = RecordKey::new("shared/rw/x").unwrap();
    let record = records.get(&key).await.unwrap().unwrap();
    let deleted = records.delete(&key, record.version).await;
    assert_eq!(deleted.unwrap(), Deleted::Done);
    let lost = tokio::time::timeout(short * 2, guard.lost()).await;
    assert_eq!(lost, Ok(LossReason::HistoryChanged));
}

#[tokio::test]
async fn a_new_capacity_counts_for_holders_and_callers_of_the_process() {
    let store = store();
    let semaphore = Semaphore::new(&store, "x", 2).unwrap();
    let held = semaphore.permits(2).acquire().await.unwrap();
    let waiting = tokio::spawn(semaphore.permits(1).acquire());
    let (more, fewer) = tokio::join!(semaphore.resize(3), semaphore.resize(4));
    assert!(more.is_ok() && fewer.is_ok());
    let second = tokio::time::timeout(SOON, waiting).await.unwrap();
    let second = second.unwrap().unwrap();
    let free = semaphore.free_permits().await.unwrap();
    assert_eq!((semaphore.capacity(), free), (4, 1));
    assert_eq!(second.epoch(), held.epoch());
    assert!(held.release().await.is_clean() && second.release().await.is_clean());

    // Nothing is on record any more, so the number counts here at once.
    semaphore.resize(5).await.unwrap();
    let all = semaphore.permits(5).acquire().await.unwrap();
    assert!(all.release().await.is_clean());
}

/// A runtime whose only thread stands still until this is dropped, and which ends then. It has
/// taken the lock as a reader before, so the task of the lock is on it.
struct Blocked(Option<mpsc::Sender<()>>, Option<thread::JoinHandle<()>>);

impl Blocked {
    fn with_a_reader(lock: &RwLock) -> Self {
        let (go_on, stands_still) = mpsc::channel();
        let (has_entered, entered) = mpsc::channel();
        let lock = lock.clone();
        let thread = thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                let guard = lock.read().acquire().await.unwrap();
                has_entered.send(()).unwrap();
                let _ = stands_still.recv();
                drop(guard);
            });
        });
        entered.recv().unwrap();
        Self(Some(go_on), Some(thread))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.0.take();
        if let Some(thread) = self.1.take() {
            let _ = thread.join();
        }
    }
}

#[tokio::test]
async fn a_caller_waits_no_longer_than_it_said_for_a_runtime_that_stands_still() {
    let lock = RwLock::new(&store(), "x").unwrap();
    let _blocked = Blocked::with_a_reader(&lock);
    let wait = Duration::from_millis(100);
    // One with another label does not join the entry of that reader.
    let acquire = lock.read().holder("another").wait(wait).acquire();
    let answer = tokio::time::timeout(wait + SOON, acquire).await;
    let error = answer.expect("it has ended").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
}

#[tokio::test]
async fn a_caller_goes_on_when_the_runtime_of_another_one_ends() {
    let lock = RwLock::new(&store(), "x").unwrap();
    let blocked = Blocked::with_a_reader(&lock);
    // One with another label does not join the entry of that reader.
    let mut acquire = Box::pin(lock.read().holder("another").acquire());
    // Nothing can answer it before that runtime has ended.
    for _ in 0..10 {
        assert!(poll!(&mut acquire).is_pending());
        tokio::task::yield_now().await;
    }
    drop(blocked);
    let guard = tokio::time::timeout(SOON, acquire).await.unwrap().unwrap();
    assert!(guard.release().await.is_clean());
}

#[tokio::test]
async fn readers_of_one_process_share_an_entry_until_the_last_one_leaves() {
    let store = store();
    let lock = RwLock::new(&store, "x").unwrap();
    let ttl = Duration::from_secs(20);
    let read = || lock.read().ttl(ttl).acquire();
    let (one, two) = (read().await.unwrap(), read().await.unwrap());
    assert_eq!(one.token(), two.token());
    let holders = || async {
        let locks = inspect(&store, "x").await.unwrap();
        locks.iter().map(|it| it.holders.len()).sum::<usize>()
    };
    assert_eq!(holders().await, 1);
    // The others asked for a lease that is longer.
    let three = read().await.unwrap();
    three.extend(Duration::from_secs(5)).await.unwrap();
    assert_eq!(three.ttl().duration(), ttl);
    drop(three);

    // Another lease is another entry.
    let other = lock.read().acquire().await.unwrap();
    assert_eq!(holders().await, 2);
    assert!(other.release().await.is_clean());

    let (first, second) = (one.watch(), two.watch());
    assert!(one.release().await.is_clean());
    assert_eq!(first.ended().await, Ended::Released);
    assert_eq!(first.check().unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(second.is_valid() && two.is_valid());
    let writer = lock.write().try_acquire().await.unwrap();
    assert!(writer.acquired().is_none());
    assert!(two.release().await.is_clean());
    assert_eq!(holders().await, 0);
    let writer = lock.write().try_acquire().await.unwrap();
    assert!(writer.acquired().is_some());
}

/// Records of which one read hangs for ever once this is asked for.
#[derive(Clone, Debug)]
struct Hanging(Arc<dyn Records>, Arc<AtomicBool>);

#[async_trait]
impl RecordsLayer for Hanging {
    fn below(&self) -> &Arc<dyn Records> {
        &self.0
    }

    async fn get_many(&self, keys: &[RecordKey]) -> Result<Vec<Option<Entry>>> {
        if self.1.swap(false, Ordering::SeqCst) {
            return std::future::pending().await;
        }
        self.0.get_many(keys).await
    }
}

#[tokio::test]
async fn one_request_that_hangs_ends_no_guard() {
    let memory = Memory::default();
    let hangs = Arc::new(AtomicBool::new(false));
    let records = Hanging(memory.records(), Arc::clone(&hangs));
    let store = Store::new(memory.lock(), records.into_records());
    let lock = RwLock::new(&store, "x").unwrap();
    let ttl = Duration::from_secs(2);
    let guard = lock.read().ttl(ttl).acquire().await.unwrap();
    hangs.store(true, Ordering::SeqCst);
    let lost = tokio::time::timeout(ttl * 2, guard.lost()).await;
    assert!(lost.is_err(), "lost: {lost:?}");
    assert!(!hangs.load(Ordering::SeqCst), "no request was sent");
    assert!(guard.release().await.is_clean());
}
