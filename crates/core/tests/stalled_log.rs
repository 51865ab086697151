//! A log that blocks each line about a lock, like a full pipe or a hanging disk. No caller of the
//! library may wait for such a log.

mod support;

use std::{
    fmt::Debug,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use distlock_core::{Ended, Guard, Locker, LossReason, ManualClock, Renew, SystemClock};
use support::{Script, ScriptedLock, eventually};
use tokio::task::JoinHandle;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
    subscriber::{Interest, set_global_default},
};

const TTL: Duration = Duration::from_secs(60);

/// The time for which the log blocks a line: longer than any wait of these tests.
const STALL: Duration = Duration::from_secs(30);

/// A subscriber that blocks each warning about a lock until the test has ended.
struct Stalled;

struct AboutALock(bool);

impl Visit for AboutALock {
    fn record_debug(&mut self, field: &Field, _: &dyn Debug) {
        self.0 |= field.name() == "lock";
    }
}

impl Subscriber for Stalled {
    fn register_callsite(&self, _: &Metadata<'_>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == Level::WARN
    }

    #[expect(clippy::disallowed_methods, reason = "a writer that blocks")]
    fn event(&self, event: &Event<'_>) {
        let mut about = AboutALock(false);
        event.record(&mut about);
        if about.0 {
            STALLED.store(true, SeqCst);
            thread::sleep(STALL);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

static STALLED: AtomicBool = AtomicBool::new(false);

fn stall_the_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| set_global_default(Stalled).unwrap());
}

/// A held lock with its store and locker, while the log blocks.
async fn held() -> (ScriptedLock, Locker, Guard) {
    stall_the_log();
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    (store, locker, guard)
}

#[tokio::test]
async fn a_loss_is_reported_and_the_next_task_gets_the_lock_while_the_log_blocks() {
    let (store, locker, guard) = held().await;
    let watch = guard.watch();
    let notified = tokio::spawn(async move { watch.ended().await });
    let next = tokio::spawn(locker.lock("a").ttl(TTL).acquire());
    tokio::task::yield_now().await;
    store.0.delete("a");
    let extension = tokio::spawn(async move { guard.extend(TTL).await });
    eventually("the loss is logged", || STALLED.load(SeqCst)).await;
    eventually("the loss is reported", || notified.is_finished()).await;
    assert_eq!(notified.await.unwrap(), Ended::Lost(LossReason::Removed));
    eventually("the next task has the lock", || next.is_finished()).await;
    assert!(next.await.unwrap().unwrap().is_valid());
    eventually("the extension is answered", || extension.is_finished()).await;
    assert!(extension.await.unwrap().is_err());
}

#[tokio::test]
async fn guards_that_expire_together_are_all_notified_while_the_log_blocks() {
    stall_the_log();
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let mut notified = Vec::new();
    for name in ["a", "b", "c"] {
        let lock = locker.lock(name).ttl(TTL).renew(Renew::Manual);
        let guard = lock.acquire().await.unwrap();
        notified.push(tokio::spawn(async move { guard.lost().await }));
    }
    tokio::task::yield_now().await;
    clock.advance(TTL);
    eventually("the loss is reported", || {
        notified.iter().all(JoinHandle::is_finished)
    })
    .await;
}

#[tokio::test]
async fn guards_that_the_store_ends_together_are_all_notified_while_the_log_blocks() {
    stall_the_log();
    let store = Script::open(Arc::new(SystemClock));
    *store.0.feeds.lock() = Some(Vec::new());
    let locker = Locker::new(Arc::new(store.clone()));
    let mut notified = Vec::new();
    for name in ["a", "b", "c"] {
        let guard = locker.lock(name).ttl(TTL).acquire().await.unwrap();
        notified.push(tokio::spawn(async move { guard.lost().await }));
    }
    tokio::task::yield_now().await;
    thread::spawn(move || {
        for feed in store.0.feeds.lock().iter().flatten() {
            feed.lose(LossReason::SessionLost);
        }
    });
    eventually("the loss is reported", || {
        notified.iter().all(JoinHandle::is_finished)
    })
    .await;
}

#[tokio::test]
async fn a_failed_extension_is_answered_while_the_log_blocks() {
    let (store, _locker, guard) = held().await;
    store.0.renew.refuse.store(1, SeqCst);
    let extension = tokio::spawn(async move { (guard.extend(TTL).await, guard) });
    eventually("answered", || extension.is_finished()).await;
    let (answer, guard) = extension.await.unwrap();
    assert!(answer.is_err() && guard.is_valid());
    let released = tokio::spawn(guard.release());
    eventually("released", || released.is_finished()).await;
    assert!(released.await.unwrap().is_clean());
}

#[tokio::test]
async fn a_lock_stays_usable_after_a_change_of_the_epoch_while_the_log_blocks() {
    let (store, _locker, guard) = held().await;
    store.0.another_history.store(true, SeqCst);
    let extension = tokio::spawn(async move { (guard.extend(TTL).await, guard) });
    eventually("answered", || extension.is_finished()).await;
    let (answer, guard) = extension.await.unwrap();
    assert!(answer.is_ok() && guard.is_valid());
    assert_eq!(guard.epoch().to_string(), "another");
}

/// A locker on a manual clock, with its store and the clock, while the log blocks.
async fn on_a_manual_clock() -> (ScriptedLock, Locker, ManualClock) {
    stall_the_log();
    let clock = ManualClock::new();
    let store = Script::open(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    locker.ready().await.unwrap();
    (store, locker, clock)
}

#[tokio::test]
async fn a_loss_after_failed_renewals_is_reported_while_the_log_blocks() {
    let (store, locker, clock) = on_a_manual_clock().await;
    let guard = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    let notified = tokio::spawn(async move { guard.lost().await });
    tokio::task::yield_now().await;
    store.0.renew.refuse.store(u32::MAX, SeqCst);
    clock.advance(TTL / 2);
    eventually("the failure is logged", || STALLED.load(SeqCst)).await;
    clock.advance(TTL);
    eventually("the loss is reported", || notified.is_finished()).await;
    assert_eq!(notified.await.unwrap(), LossReason::Unreachable);
}

#[tokio::test]
async fn other_leases_are_renewed_after_a_loss_while_the_log_blocks() {
    let (store, locker, clock) = on_a_manual_clock().await;
    let lost = locker.lock("a").ttl(TTL).acquire().await.unwrap();
    let kept = locker.lock("b").ttl(TTL).acquire().await.unwrap();
    store.0.delete("a");
    for _ in 0..5 {
        clock.advance(TTL / 2);
        eventually("renewed", || kept.remaining() > TTL * 3 / 4).await;
    }
    eventually("the loss is logged", || STALLED.load(SeqCst)).await;
    assert!(kept.is_valid() && !lost.is_valid());
    assert!(kept.release().await.is_clean());
}

#[tokio::test]
async fn a_locker_closes_while_the_log_blocks() {
    let (store, locker, guard) = held().await;
    store.0.renew.refuse.store(1, SeqCst);
    assert!(guard.extend(TTL).await.is_err());
    eventually("the failure is logged", || STALLED.load(SeqCst)).await;
    drop(guard);
    let closed = tokio::spawn(async move { locker.close().await });
    eventually("closed", || closed.is_finished()).await;
    assert!(!store.0.is_held("a"));
}
