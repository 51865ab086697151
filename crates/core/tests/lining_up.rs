//! Tasks of one process at a store with a queue: a few tasks join the store queue at once, without
//! waiting for the answer to the task before.

mod support;

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use distlock_core::{Locker, ManualClock};
use support::{Script, eventually, pause};
use tokio::task::JoinSet;

const TASKS: u32 = 5;
/// The number of contenders that may wait at the store at once: the first one and two behind it.
const AT_ONCE: u32 = 3;

fn spawn_tasks(locker: &Locker) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let locker = locker.clone();
        tasks.spawn(async move {
            let guard = locker.lock("a").acquire().await.unwrap();
            assert!(guard.release().await.is_clean());
        });
    }
    tasks
}

#[tokio::test]
async fn a_few_contenders_join_the_store_queue_at_once() {
    let clock = ManualClock::new();
    let store = Script::open_queueing(Arc::new(clock.clone()));
    store.0.contend.delay_ms.store(100, SeqCst);
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    let mut tasks = spawn_tasks(&locker);
    let sent = || store.0.contend.calls.load(SeqCst);
    eventually("three requests to join are sent", || sent() == AT_ONCE).await;
    for _ in 0..100 {
        pause().await;
    }
    assert_eq!(
        sent(),
        AT_ONCE,
        "no request has an answer yet, so no further task may join"
    );
    store.0.contend.delay_ms.store(0, SeqCst);
    clock.advance(Duration::from_millis(100));
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(sent(), TASKS);
    assert_eq!(store.0.grants("a"), [1, 2, 3, 4, 5]);
    locker.close().await;
}

#[tokio::test]
async fn later_tasks_get_the_lock_when_the_first_contender_hangs() {
    let store = Script::open_queueing(Arc::new(distlock_core::SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    // The first request to join hangs, and its caller gives up below.
    store.0.contend.hang.store(1, SeqCst);
    let name = locker.lock("a");
    let given_up = tokio::spawn(async move { name.acquire().await });
    let sent = || store.0.contend.calls.load(SeqCst);
    eventually("the first request hangs", || sent() == 1).await;
    let mut tasks = spawn_tasks(&locker);
    eventually("other tasks join", || sent() >= AT_ONCE).await;
    given_up.abort();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(store.0.grants("a").len(), TASKS as usize);
    locker.close().await;
}
