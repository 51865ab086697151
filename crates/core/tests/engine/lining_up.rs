//! Tasks of one process join the store queue: a few at once, without waiting for the answer to the
//! task before. A contender behind others does not ask for the lock.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use crate::support::{Script, ScriptedLock, eventually, pause, time_of};
use distlock_core::{Attempt, Clock, Fairness, Locker, ManualClock, SystemClock, Wakeup};
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
    let store = Script::open_queueing(Arc::new(SystemClock));
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

#[tokio::test]
async fn a_contender_behind_others_asks_only_when_it_is_first() {
    let store = Script::open_queueing(Arc::new(SystemClock));
    let (mine, others) = (
        Locker::new(Arc::new(store.clone())),
        Locker::new(Arc::new(store.clone())),
    );
    let theirs = others.lock("a").acquire().await.unwrap();
    store.0.others_ahead.store(true, SeqCst);
    let waiting = tokio::spawn(mine.lock("a").acquire());
    let joined = || store.0.contend.calls.load(SeqCst);
    eventually("both have joined the queue", || joined() == 2).await;
    let asked = store.0.acquire.calls.load(SeqCst);
    for _ in 0..50 {
        pause().await;
        store.0.wake_waiters();
    }
    assert_eq!(store.0.acquire.calls.load(SeqCst), asked);
    store.0.others_ahead.store(false, SeqCst);
    assert!(theirs.release().await.is_clean());
    assert!(waiting.await.unwrap().unwrap().is_valid());
}

/// The last task of a run of hand-overs does not hand over, so the next task lets waiters of other
/// processes go first: it joins their queue before it asks.
#[tokio::test]
async fn a_task_joins_the_store_queue_first_after_a_run_of_hand_overs() {
    let store = Script::open(Arc::new(SystemClock));
    let locker = Locker::builder(Arc::new(store.clone()))
        .hand_over_limit(2)
        .build();
    let mut tasks = spawn_tasks(&locker);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let calls = [
        &store.0.acquire.calls,
        &store.0.hand_over.calls,
        &store.0.contend.calls,
    ];
    assert_eq!(calls.map(|calls| calls.load(SeqCst)), [2, 3, 1]);
}

#[tokio::test]
async fn a_task_that_waits_behind_contenders_learns_the_holder_that_they_saw() {
    let store = Script::open_queueing(Arc::new(SystemClock));
    let (mine, others) = (
        Locker::new(Arc::new(store.clone())),
        Locker::new(Arc::new(store.clone())),
    );
    let theirs = others.lock("a").holder("somebody else");
    let theirs = theirs.acquire().await.unwrap();
    let mut tasks = spawn_tasks(&mine);
    let asked = || store.0.acquire.calls.load(SeqCst);
    eventually("the contenders have asked", || asked() > AT_ONCE).await;
    let late = mine.lock("a").wait(Duration::from_millis(50)).acquire();
    let error = late.await.unwrap_err().to_string();
    assert!(error.contains("somebody else"), "{error}");
    assert!(theirs.release().await.is_clean());
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn a_store_without_an_order_is_asked_before_its_queue_is_joined() {
    let clock = Arc::new(SystemClock);
    let store = Script::with_capabilities(clock, |capabilities| capabilities.hand_over = false);
    let locker = Locker::new(Arc::new(store.clone()));
    let guard = locker.lock("a").acquire().await.unwrap();
    assert!(guard.release().await.is_clean());
    assert_eq!(store.0.contend.calls.load(SeqCst), 0);
}

/// An acquire without a wait cannot join the store queue. So the process lets others go first at
/// its next acquire with a wait.
#[tokio::test]
async fn an_acquire_without_a_wait_does_not_use_up_the_turn_of_other_processes() {
    let store = Script::with_capabilities(Arc::new(SystemClock), |capabilities| {
        capabilities.wakeup = Wakeup::Push;
    });
    let (mine, others) = (
        Locker::new(Arc::new(store.clone())),
        Locker::new(Arc::new(store.clone())),
    );
    let theirs = others.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(mine.lock("a").acquire());
    // The first holder asks once. The waiter asks before it joins, after it has joined, and for the
    // third time only after it has waited.
    eventually("the other locker has waited", || {
        store.0.wake_waiters();
        store.0.acquire.calls.load(SeqCst) >= 4
    })
    .await;
    assert!(theirs.release().await.is_clean());
    assert!(waiting.await.unwrap().unwrap().release().await.is_clean());
    let joined = || store.0.contend.calls.load(SeqCst);
    assert_eq!(joined(), 1);
    let at_once = mine.lock("a").wait(Duration::ZERO).acquire().await.unwrap();
    assert!(at_once.release().await.is_clean());
    assert_eq!(joined(), 1);
    let later = mine.lock("a").acquire().await.unwrap();
    assert!(later.release().await.is_clean());
    assert_eq!(joined(), 2, "the process joins before it asks again");
}

/// A store that keeps an order for callers that ask for it.
fn open_with_order(clock: Arc<dyn Clock>) -> ScriptedLock {
    Script::with_capabilities(clock, |capabilities| {
        capabilities.fairness = Fairness::OnRequest;
    })
}

/// Such a hand-over would pass the waiters of other processes.
#[tokio::test]
async fn a_fair_waiter_is_handed_no_lock_by_a_task_of_its_process() {
    let store = open_with_order(Arc::new(SystemClock));
    let locker = Locker::new(Arc::new(store.clone()));
    let held = locker.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(locker.lock("a").fair().acquire());
    for _ in 0..20 {
        pause().await;
    }
    assert!(held.release().await.is_clean());
    assert!(waiting.await.unwrap().unwrap().release().await.is_clean());
    let calls = [&store.0.hand_over.calls, &store.0.contend.calls];
    assert_eq!(calls.map(|calls| calls.load(SeqCst)), [0, 1]);
}

/// The attempt was granted, so the contender waits for the end of its own lease otherwise.
#[tokio::test]
async fn a_fair_claim_asks_about_an_attempt_without_an_answer_from_any_place() {
    let clock = ManualClock::new();
    let store = open_with_order(Arc::new(clock.clone()));
    let locker = Locker::builder(Arc::new(store.clone()))
        .clock(Arc::new(clock.clone()))
        .build();
    store.0.acquire.lose_reply.store(1, SeqCst);
    let waiting = tokio::spawn(locker.lock("a").fair().acquire());
    let asked = || store.0.acquire.calls.load(SeqCst);
    eventually("the attempt is sent", || asked() == 1).await;
    store.0.others_ahead.store(true, SeqCst);
    let (took, granted) = time_of(&clock, waiting).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert!(granted.unwrap().unwrap().is_valid());
    assert_eq!(store.0.grants("a"), [1]);
    locker.close().await;
}

#[tokio::test]
async fn a_fair_caller_that_was_never_first_learns_the_holder() {
    let store = open_with_order(Arc::new(SystemClock));
    let (mine, others) = (
        Locker::new(Arc::new(store.clone())),
        Locker::new(Arc::new(store.clone())),
    );
    let theirs = others.lock("a").holder("somebody else");
    let theirs = theirs.acquire().await.unwrap();
    store.0.others_ahead.store(true, SeqCst);
    let waits = || {
        let wanted = mine.lock("a").fair().wait(Duration::from_millis(50));
        wanted.acquire()
    };
    // The second one waits behind the first one, inside the process.
    let (one, two) = tokio::join!(waits(), waits());
    for late in [one, two] {
        let error = late.unwrap_err();
        let holder = error.holder().map(|it| it.holder.as_str());
        assert_eq!(holder, Some("somebody else"), "{error}");
    }
    let attempt = mine.lock("a").fair().try_acquire().await.unwrap();
    let Attempt::Busy(Some(holder)) = attempt else {
        panic!("{attempt:?}");
    };
    assert_eq!(holder.holder, "somebody else");
    assert_eq!(store.0.acquire.calls.load(SeqCst), 1, "a fair caller asked");
    assert!(theirs.release().await.is_clean());
}
