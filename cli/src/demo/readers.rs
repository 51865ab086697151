//! The scene about a lock of readers and writers: readers that come without end, and one writer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use distlock::{Clock as _, Store, SystemClock};
use distlock_recipes::shared::RwLock;
use tokio::task::JoinSet;

/// The number of callers that read again and again.
const READERS: usize = 8;
/// How often the writer comes.
const WRITES: u32 = 5;
/// The time of one read, and of one write.
const WORK_TIME: Duration = Duration::from_millis(10);
/// The pause of the writer, in which the readers have the lock.
const PAUSE: Duration = Duration::from_millis(100);

/// Who is at work.
#[derive(Debug, Default)]
struct AtWork {
    readers: AtomicU64,
    /// The most readers at a time.
    most_readers: AtomicU64,
    is_written: AtomicBool,
    /// The number of times that a reader and the writer were at work together.
    mixed: AtomicU64,
    is_over: AtomicBool,
}

/// Readers share a lock without a pause, and a writer gets in all the same.
pub(super) async fn play(store: &Store, remark: &(dyn Fn(&str) + Sync)) -> Result<()> {
    let lock = RwLock::new(store, "catalogue")?;
    let at_work = Arc::new(AtWork::default());
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        let (lock, at_work) = (lock.clone(), Arc::clone(&at_work));
        readers.spawn(async move {
            while !at_work.is_over.load(Ordering::SeqCst) {
                let reader = lock.read().acquire().await?;
                let readers = at_work.readers.fetch_add(1, Ordering::SeqCst) + 1;
                at_work.most_readers.fetch_max(readers, Ordering::SeqCst);
                let is_mixed = at_work.is_written.load(Ordering::SeqCst);
                at_work.mixed.fetch_add(is_mixed.into(), Ordering::SeqCst);
                SystemClock.sleep(WORK_TIME).await;
                at_work.readers.fetch_sub(1, Ordering::SeqCst);
                let _ = reader.release().await;
            }
            Ok::<_, distlock::Error>(())
        });
    }
    let mut longest = Duration::ZERO;
    for _ in 0..WRITES {
        SystemClock.sleep(PAUSE).await;
        let asked = SystemClock.now();
        let writer = lock.write().acquire().await?;
        longest = longest.max(SystemClock.now().since(asked));
        at_work.is_written.store(true, Ordering::SeqCst);
        let is_mixed = at_work.readers.load(Ordering::SeqCst) > 0;
        at_work.mixed.fetch_add(is_mixed.into(), Ordering::SeqCst);
        SystemClock.sleep(WORK_TIME).await;
        at_work.is_written.store(false, Ordering::SeqCst);
        let _ = writer.release().await;
    }
    at_work.is_over.store(true, Ordering::SeqCst);
    for reader in readers.join_all().await {
        reader?;
    }
    let most = at_work.most_readers.load(Ordering::SeqCst);
    let mixed = at_work.mixed.load(Ordering::SeqCst);
    remark(&format!("up to {most} of {READERS} readers at a time"));
    remark(&format!(
        "{WRITES} writes beside readers that never pause: each waited for {longest:.0?} at most"
    ));
    ensure!(mixed == 0, "a reader was at work beside the writer");
    ensure!(most > 1, "the readers did not share the lock");
    Ok(())
}
