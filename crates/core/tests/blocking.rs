//! The blocking API over a scripted store.

#![cfg(feature = "blocking")]

mod support;

use std::{
    cell::RefCell,
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use distlock_core::{
    Attempt, Clock, ErrorKind, ManualClock, Released, Renew, Result, Scope, SystemClock,
    blocking::{Guard, Locker, Runtime},
};
use support::{Script, ScriptedLock, eventually};
use tokio::{
    runtime::Builder,
    task::{LocalSet, block_in_place, spawn_blocking},
};

/// Longer than a test takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_millis(500);

fn open(clock: Arc<dyn Clock>) -> (ScriptedLock, Locker) {
    let store = Script::open(Arc::clone(&clock));
    let locker = distlock_core::Locker::builder(Arc::new(store.clone()));
    let locker = locker.clock(clock).build();
    (store, Locker::new(locker, Runtime::start().unwrap()))
}

/// Waits until a condition holds.
fn wait_until(locker: &Locker, what: &str, holds: impl FnMut() -> bool) {
    let wait = async {
        eventually(what, holds).await;
        Ok(())
    };
    locker.runtime().wait_for(wait).unwrap();
}

/// Runs `work` on a thread of its own, and tells when it has ended.
fn on_thread(work: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let (done, ended) = channel();
    thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    ended
}

#[test]
fn a_lock_is_taken_refused_and_released() {
    let (store, locker) = open(Arc::new(SystemClock));
    let guard = locker.lock("a").holder("first").acquire().unwrap();
    assert_eq!((guard.name().as_str(), guard.is_valid()), ("a", true));
    assert_eq!((guard.token(), guard.loss()), (guard.fence().token, None));
    let Attempt::Busy(Some(holder)) = locker.lock("a").try_acquire().unwrap() else {
        panic!("two hold it");
    };
    assert_eq!(holder.holder, "first");
    let late = locker.lock("a").wait(Duration::from_millis(5)).acquire();
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
    guard.extend(Duration::from_secs(20)).unwrap();
    assert_eq!(guard.ttl().duration(), Duration::from_secs(20));
    assert!(guard.release().is_clean());
    assert!(!store.0.is_held("a"));
    let Attempt::Acquired(guard) = locker.lock("a").try_acquire().unwrap() else {
        panic!("it was released");
    };
    assert!(guard.release().is_clean());
    locker.close().unwrap();
    let closed = locker.lock("a").acquire().unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
}

#[test]
fn the_guards_of_a_scope_and_of_a_set_end_together() {
    let (store, locker) = open(Arc::new(SystemClock));
    let request = Scope::new();
    let outer = locker.lock("a").reentrant(&request).acquire().unwrap();
    let inner = locker.lock("a").reentrant(&request).acquire().unwrap();
    let again = inner.reenter().unwrap();
    drop(outer);
    drop(inner);
    assert!(again.is_valid() && store.0.is_held("a"));
    drop(again);
    assert!(!store.0.is_held("a"));
    let set = locker.lock_all(["b", "c"]).acquire().unwrap();
    let names: Vec<_> = set
        .watches()
        .iter()
        .map(|it| it.name().to_string())
        .collect();
    assert_eq!(
        (names, set.is_valid()),
        (vec!["b".to_owned(), "c".to_owned()], true)
    );
    drop(set);
    assert!(!store.0.is_held("b") && !store.0.is_held("c"));
    let set = locker.lock_all(["b", "c"]).acquire().unwrap();
    let released = set.release().unwrap();
    assert!(released.iter().all(|(_, it)| it.is_clean()), "{released:?}");
}

#[test]
fn a_drop_returns_after_the_release() {
    let (store, locker) = open(Arc::new(SystemClock));
    let guard = locker.lock("a").acquire().unwrap();
    // A drop that does not wait returns long before.
    store.0.release.delay_ms.store(100, SeqCst);
    drop(guard);
    assert!(!store.0.is_held("a"));
    assert_eq!(store.0.release.calls.load(SeqCst), 1);
}

/// A lock whose next release hangs. Only the test ends it, by the clock.
fn held_at_a_hanging_store(clock: &ManualClock) -> (ScriptedLock, Locker, Guard) {
    let (store, locker) = open(Arc::new(clock.clone()));
    let lock = locker.lock("a").ttl(LONG).renew(Renew::Manual);
    let guard = lock.acquire().unwrap();
    store.0.release.hang.store(1, SeqCst);
    (store, locker, guard)
}

#[test]
fn a_drop_at_a_hanging_store_ends_after_a_second_and_the_background_releases() {
    let clock = ManualClock::new();
    let (store, locker, guard) = held_at_a_hanging_store(&clock);
    let dropped = on_thread(move || drop(guard));
    wait_until(&locker, "the release is sent", || {
        store.0.release.calls.load(SeqCst) == 1
    });
    // Three seconds, because the drop may start its timer after the first step. A release that is
    // not bounded by the drop takes five.
    let mut ended = Err(RecvTimeoutError::Timeout);
    for _ in 0..3 {
        clock.advance(Duration::from_secs(1));
        if ended.is_err() {
            ended = dropped.recv_timeout(Duration::from_secs(2));
        }
    }
    ended.unwrap();
    wait_until(&locker, "released in the background", || {
        !store.0.is_held("a")
    });
}

#[test]
fn a_drop_in_async_code_does_not_block() {
    let clock = ManualClock::new();
    let (store, locker, guard) = held_at_a_hanging_store(&clock);
    let dropped = on_thread(move || {
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { drop(guard) });
    });
    dropped.recv_timeout(LONG).unwrap();
    wait_until(&locker, "released in the background", || {
        clock.advance(Duration::from_millis(100));
        store.0.release.calls.load(SeqCst) >= 2 && !store.0.is_held("a")
    });
}

#[test]
fn a_guard_in_a_thread_local_variable_is_released_at_the_end_of_its_thread() {
    thread_local!(static HELD: RefCell<Option<Guard>> = const { RefCell::new(None) });
    let (store, locker) = open(Arc::new(SystemClock));
    // Rust drops the variables of a thread in an order that depends on their first uses.
    for first in [true, false] {
        let of_thread = locker.clone();
        let held = move || {
            if first {
                HELD.with_borrow(|held| assert!(held.is_none()));
            }
            let guard = of_thread.lock("a").acquire().unwrap();
            HELD.set(Some(guard));
        };
        thread::spawn(held).join().unwrap();
        wait_until(&locker, "released", || !store.0.is_held("a"));
    }
}

#[test]
fn a_loss_calls_the_callback_which_may_block() {
    let (store, locker) = open(Arc::new(SystemClock));
    let guard = locker.lock("a").ttl(TTL).acquire().unwrap();
    let (lost, told) = channel();
    let in_callback = locker.clone();
    guard.on_lost(move |reason| {
        let seen = in_callback.inspect("a");
        lost.send((reason, seen.is_ok())).unwrap();
    });
    // The store is away from here on.
    store.0.renew.refuse.store(u32::MAX, SeqCst);
    let (reason, seen) = told.recv_timeout(LONG).unwrap();
    assert!(seen, "a blocking call of the callback failed");
    assert_eq!(guard.loss(), Some(reason));
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    // Who asks later is called at once.
    let (lost, told) = channel();
    guard.on_lost(move |reason| lost.send(reason).unwrap());
    assert_eq!(told.recv_timeout(LONG), Ok(reason));
    assert!(matches!(guard.release(), Released::AlreadyLost(it) if it == reason));
}

#[test]
fn a_release_drops_the_callback_uncalled() {
    let (_store, locker) = open(Arc::new(SystemClock));
    let guard = locker.lock("a").acquire().unwrap();
    let (lost, told) = channel();
    guard.on_lost(move |reason| lost.send(reason).unwrap());
    assert!(guard.release().is_clean());
    assert_eq!(told.recv_timeout(LONG), Err(RecvTimeoutError::Disconnected));
}

#[test]
fn the_work_of_a_run_may_make_calls_and_a_loss_is_its_error() {
    let (store, locker) = open(Arc::new(SystemClock));
    let inner = locker.clone();
    let done = locker.lock("a").run(move |held| {
        assert!(inner.lock("b").acquire().unwrap().release().is_clean());
        held.check().map(|()| 7)
    });
    assert_eq!(done.unwrap().unwrap(), 7);
    assert!(!store.0.is_held("a"));
    let lost = locker.lock("a").ttl(TTL).run(|held| {
        store.0.delete("a");
        wait_until(&locker, "the loss is noticed", || !held.is_valid());
    });
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn threads_that_contend_hold_the_lock_one_at_a_time() {
    let (_store, locker) = open(Arc::new(SystemClock));
    let count = Arc::new(AtomicU64::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (locker, count) = (locker.clone(), Arc::clone(&count));
            thread::spawn(move || {
                for _ in 0..25 {
                    let guard = locker.lock("a").acquire().unwrap();
                    // Two steps, which another holder would come between.
                    let before = count.load(SeqCst);
                    thread::yield_now();
                    count.store(before + 1, SeqCst);
                    assert!(guard.release().is_clean());
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(count.load(SeqCst), 100);
}

#[test]
fn a_ticket_is_resumed() {
    // The memory store has tickets.
    let locker = distlock::blocking::connect("memory:?private=true").unwrap();
    let guard = locker.lock("a").acquire().unwrap();
    let (token, ticket) = (guard.token(), guard.into_ticket().unwrap());
    let resumed = locker.resume(&ticket).unwrap();
    assert_eq!(resumed.token(), token);
    assert!(resumed.release().is_clean());
}

fn refused<T: Debug>(answer: Result<T>) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let said = error.to_string();
    assert!(said.contains("blocking call in async code"), "{said}");
    assert!(said.contains("spawn_blocking"), "{said}");
}

/// Makes each call in async code.
fn all_are_refused(locker: &Locker, held: [Guard; 3]) {
    let [released, ticketed, extended] = held;
    refused(Runtime::start());
    refused(locker.lock("x").acquire());
    refused(locker.lock("x").try_acquire());
    refused(locker.lock("x").run(|_| ()));
    refused(locker.lock_all(["x", "y"]).acquire());
    refused(locker.inspect("x"));
    refused(locker.list(""));
    refused(extended.extend(TTL));
    refused(ticketed.into_ticket());
    match released.release() {
        Released::Unconfirmed(error) => refused::<()>(Err(error)),
        other => panic!("{other:?}"),
    }
    refused(locker.close());
}

/// Locks for [`all_are_refused`]. Each use has other names, because the releases happen in the
/// background.
fn held(locker: &Locker, of: &str) -> [Guard; 3] {
    ["a", "b", "c"].map(|name| locker.lock(format!("{of}{name}")).acquire().unwrap())
}

#[test]
fn a_call_in_async_code_is_an_error() {
    let (store, locker) = open(Arc::new(SystemClock));
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = builder.build().unwrap();
        let guards = held(&locker, "in block_on ");
        runtime.block_on(async { all_are_refused(&locker, guards) });
        let (in_task, guards) = (locker.clone(), held(&locker, "in a task "));
        let task = runtime.spawn(async move { all_are_refused(&in_task, guards) });
        runtime.block_on(task).unwrap();
        let guards = held(&locker, "in a local set ");
        LocalSet::new().block_on(&runtime, async { all_are_refused(&locker, guards) });
    }
    // The guards are gone, and so are their locks.
    wait_until(&locker, "released in the background", || {
        ["in block_on ", "in a task ", "in a local set "]
            .iter()
            .all(|of| {
                ["a", "b", "c"]
                    .iter()
                    .all(|it| !store.0.is_held(&format!("{of}{it}")))
            })
    });
}

#[test]
fn threads_of_a_runtime_that_may_block_may_call() {
    let (_store, locker) = open(Arc::new(SystemClock));
    let call = move || assert!(locker.lock("a").acquire().unwrap().release().is_clean());
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .build()
        .unwrap();
    {
        let _entered = runtime.enter();
        call();
    }
    runtime.block_on(async {
        let (blocking, in_place) = (call.clone(), call);
        spawn_blocking(blocking).await.unwrap();
        let task = tokio::spawn(async move { block_in_place(in_place) });
        task.await.unwrap();
    });
}
