//! The asynchronous layer over the lock table, and the records.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    AcquireRequest, Attempt, Clock, Contender, Deleted, DistLock, ErrorKind, Expect, Fairness,
    HolderLabel, Lease, LockName, Locker, ManualClock, OwnerId, RecordKey, Records, SystemClock,
    Ttl, Verdict, Version, Written,
};
use distlock_memory::Memory;
use futures_util::{FutureExt as _, future::join_all};

const LONG: Duration = Duration::from_secs(3600);

fn request(name: &str) -> AcquireRequest {
    AcquireRequest::new(
        LockName::new(name).unwrap(),
        OwnerId::new(),
        Ttl::new(Duration::from_secs(10)).unwrap(),
        HolderLabel::new("test").unwrap(),
    )
}

async fn acquire(lock: &dyn DistLock, request: &AcquireRequest) -> Lease {
    let grant = lock.try_acquire(request).await.unwrap().acquired().unwrap();
    Lease::new(request.name.clone(), request.owner, Some(grant.token))
}

/// Makes an attempt. Returns whether the lock was granted.
async fn attempt_is_granted(contender: &mut dyn Contender) -> bool {
    matches!(contender.attempt().await.unwrap(), Attempt::Acquired(_))
}

/// Waits until exactly this many sleeps are active on the clock.
async fn wait_for_sleepers(clock: &ManualClock, sleepers: usize) {
    while clock.sleepers() != sleepers {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn all_handles_share_one_table() {
    let memory = Memory::default();
    let (first, second) = (memory.lock(), memory.lock().reopen().await.unwrap());
    let held = acquire(&*first, &request("a")).await;
    let Attempt::Busy(Some(holder)) = second.try_acquire(&request("a")).await.unwrap() else {
        panic!("it is held")
    };
    assert_eq!(holder.token, held.token);
    first.close().await;
    second.release(&held).await.unwrap();
    acquire(&*second, &request("a")).await;
    let health = memory.lock().health().await.unwrap();
    assert!(health.findings.iter().all(|f| f.verdict == Verdict::Pass));
    assert_eq!(health.epoch, second.health().await.unwrap().epoch);
    assert_ne!(
        health.epoch,
        Memory::default().lock().health().await.unwrap().epoch
    );
    assert_eq!(first.health().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(first.capabilities().fairness, Fairness::OnRequest);
}

#[tokio::test]
async fn a_release_ends_the_wait_of_the_first_contender_only() {
    let lock = Memory::default().lock();
    let held = acquire(&*lock, &request("a")).await;
    let mut first = lock.contend(&request("a")).await.unwrap();
    let mut second = lock.contend(&request("a")).await.unwrap();
    assert!(!attempt_is_granted(&mut *first).await && !attempt_is_granted(&mut *second).await);
    let mut second_waits = second.wait(LONG);
    assert!((&mut second_waits).now_or_never().is_none());
    let first_waits = tokio::spawn(async move {
        first.wait(LONG).await;
        first
    });
    // The yield usually lets the first contender start its wait. The release must end that wait
    // even if it has not started yet.
    tokio::task::yield_now().await;
    lock.release(&held).await.unwrap();
    let mut first = first_waits.await.unwrap();
    assert!((&mut second_waits).now_or_never().is_none());
    assert!(attempt_is_granted(&mut *first).await);
    drop(second_waits);
    first.leave().await.unwrap();
    assert!(!attempt_is_granted(&mut *second).await);
}

#[tokio::test]
async fn a_dropped_wait_passes_its_wake_up_to_the_next_contender() {
    let lock = Memory::default().lock();
    let held = acquire(&*lock, &request("a")).await;
    let mut first = lock.contend(&request("a")).await.unwrap();
    let mut second = lock.contend(&request("a")).await.unwrap();
    assert!(first.wait(LONG).now_or_never().is_none(), "and dropped");
    let mut waits = first.wait(LONG);
    assert!((&mut waits).now_or_never().is_none());
    let mut second_waits = second.wait(LONG);
    assert!((&mut second_waits).now_or_never().is_none());
    lock.release(&held).await.unwrap();
    assert!((&mut second_waits).now_or_never().is_none());
    drop(waits);
    second_waits.await;
    // The first contender keeps its wake-up, and its place before the second contender.
    assert!(first.wait(LONG).now_or_never().is_some());
    assert!(attempt_is_granted(&mut *first).await);
    assert!(!attempt_is_granted(&mut *second).await);
}

#[tokio::test]
async fn a_dropped_contender_blocks_no_other_caller() {
    let lock = Memory::default().lock();
    let held = acquire(&*lock, &request("a")).await;
    let gone = lock.contend(&request("a")).await.unwrap();
    let mut cancelled = lock.contend(&request("a")).await.unwrap();
    assert!(cancelled.wait(LONG).now_or_never().is_none());
    drop(gone);
    lock.release(&held).await.unwrap();
    acquire(&*lock, &request("a")).await;
}

#[tokio::test]
async fn a_wait_ends_with_the_lease_or_after_the_given_time() {
    let clock = ManualClock::new();
    let lock = Memory::new(Arc::new(clock.clone())).lock();
    acquire(&*lock, &request("a")).await;
    let mut contender = lock.contend(&request("a")).await.unwrap();
    assert!(contender.wait(Duration::ZERO).now_or_never().is_some());
    let task = tokio::spawn(async move {
        contender.wait(Duration::from_millis(2500)).await;
        contender
    });
    for step in [1000, 1000, 499] {
        wait_for_sleepers(&clock, 1).await;
        clock.advance(Duration::from_millis(step));
    }
    wait_for_sleepers(&clock, 1).await;
    assert!(!task.is_finished());
    clock.advance(Duration::from_millis(1));
    let mut contender = task.await.unwrap();
    assert!(!attempt_is_granted(&mut *contender).await);
    // The lease ends 7.5 s from now.
    let task = tokio::spawn(async move {
        contender.wait(LONG).await;
        contender
    });
    wait_for_sleepers(&clock, 1).await;
    clock.advance(Duration::from_millis(7499));
    wait_for_sleepers(&clock, 1).await;
    assert!(!task.is_finished());
    clock.advance(Duration::from_millis(1));
    assert!(attempt_is_granted(&mut *task.await.unwrap()).await);
}

/// Many lockers compete for many names without pauses: no increment of a counter behind a lock is
/// lost, and every task ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lockers_of_one_table_exclude_each_other() {
    let memory = Memory::default();
    let counters: Arc<[std::sync::atomic::AtomicU32; 3]> = Arc::default();
    let tasks: Vec<_> = (0..4)
        .map(|_| Locker::new(memory.lock()))
        .flat_map(|locker| (0..4).map(move |_| locker.clone()))
        .map(|locker| {
            let counters = Arc::clone(&counters);
            tokio::spawn(async move {
                let order = std::sync::atomic::Ordering::SeqCst;
                for round in 0..90 {
                    let at = round % 3;
                    let guard = locker.lock(format!("c{at}")).acquire().await.unwrap();
                    let read = counters[at].load(order);
                    tokio::task::yield_now().await;
                    counters[at].store(read + 1, order);
                    assert!(guard.release().await.is_clean());
                }
            })
        })
        .collect();
    for task in join_all(tasks).await {
        task.unwrap();
    }
    let counted = counters
        .each_ref()
        .map(|counter| counter.load(std::sync::atomic::Ordering::SeqCst));
    assert_eq!(counted, [16 * 30; 3]);
}

fn key(text: &str) -> RecordKey {
    RecordKey::new(text).unwrap()
}

/// Writes a record. Returns its version; `None` after a conflict.
async fn put(records: &dyn Records, name: &str, value: &[u8], expect: Expect) -> Option<Version> {
    match records.put(&key(name), value, expect).await.unwrap() {
        Written::Stored(version) => Some(version),
        Written::Conflict => None,
    }
}

#[tokio::test]
async fn versions_rise_across_deletes_although_the_clock_stands_still() {
    let clock = ManualClock::new();
    let records = Memory::new(Arc::new(clock.clone())).records();
    let first = put(&*records, "a", b"1", Expect::Absent).await.unwrap();
    assert_eq!(put(&*records, "a", b"x", Expect::Absent).await, None);
    let second = put(&*records, "a", b"2", Expect::Version(first))
        .await
        .unwrap();
    assert_eq!(
        put(&*records, "a", b"x", Expect::Version(first)).await,
        None
    );
    assert_eq!(
        records.delete(&key("a"), first).await.unwrap(),
        Deleted::Conflict
    );
    assert_eq!(
        records.delete(&key("a"), second).await.unwrap(),
        Deleted::Done
    );
    assert_eq!(
        records.delete(&key("a"), second).await.unwrap(),
        Deleted::Conflict
    );
    assert_eq!(
        put(&*records, "a", b"x", Expect::Version(second)).await,
        None
    );
    let third = put(&*records, "a", b"3", Expect::Absent).await.unwrap();
    assert!(first < second && second < third);
    clock.advance(Duration::from_secs(5));
    let other = records.reopen().await.unwrap();
    let entry = other.get(&key("a")).await.unwrap().unwrap();
    assert_eq!((entry.version, &*entry.value), (third, &b"3"[..]));
    assert_eq!(entry.age, Some(Duration::from_secs(5)));
    let fourth = put(&*records, "a", b"4", Expect::Version(third))
        .await
        .unwrap();
    assert_eq!(
        records.get(&key("a")).await.unwrap().unwrap().age,
        Some(Duration::ZERO)
    );
    assert!(
        fourth.get() >= first.get() + 5_000_000,
        "the clock is the floor"
    );
}

#[tokio::test]
async fn a_scan_pages_in_byte_order() {
    let records = Memory::default().records();
    let names = ["a", "a/", "a/b", "a/é", "aa", "b", "A"];
    for name in names {
        put(&*records, name, name.as_bytes(), Expect::Absent)
            .await
            .unwrap();
    }
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = records.scan("a", after.as_ref(), 2).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        seen.extend(page.into_iter().map(|(key, entry)| {
            assert_eq!(entry.value, key.as_str().as_bytes());
            key.to_string()
        }));
    }
    assert_eq!(seen, ["a", "a/", "a/b", "a/é", "aa"]);
    assert_eq!(
        records.scan("", None, 100).await.unwrap().len(),
        names.len()
    );
    assert_eq!(
        records
            .scan("a/", Some(&key("A")), 100)
            .await
            .unwrap()
            .len(),
        3
    );
    assert!(
        records
            .scan("a", Some(&key("b")), 100)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(records.scan("a", None, 0).await.unwrap().is_empty());
    let many = records
        .get_many(&[key("b"), key("nope"), key("A")])
        .await
        .unwrap();
    let many: Vec<_> = many
        .into_iter()
        .map(|entry| entry.map(|entry| entry.value))
        .collect();
    assert_eq!(many, [Some(b"b".to_vec()), None, Some(b"A".to_vec())]);
}

#[tokio::test]
async fn a_too_large_value_is_refused() {
    let records = Memory::default().records();
    let value = vec![0; distlock_core::MAX_VALUE_BYTES + 1];
    let error = records
        .put(&key("a"), &value, Expect::Absent)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(records.get(&key("a")).await.unwrap(), None);
    put(&*records, "a", &value[1..], Expect::Absent)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_writers_of_one_version_succeeds() {
    let records = Memory::new(Arc::new(SystemClock) as Arc<dyn Clock>).records();
    put(&*records, "n", b"0", Expect::Absent).await.unwrap();
    let add = |records: Arc<dyn Records>| async move {
        for _ in 0..50 {
            loop {
                let entry = records.get(&key("n")).await.unwrap().unwrap();
                let n: u32 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                tokio::task::yield_now().await;
                let next = (n + 1).to_string();
                let expect = Expect::Version(entry.version);
                if put(&*records, "n", next.as_bytes(), expect).await.is_some() {
                    break;
                }
            }
        }
    };
    let tasks: Vec<_> = (0..8)
        .map(|_| tokio::spawn(add(Arc::clone(&records))))
        .collect();
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(records.get(&key("n")).await.unwrap().unwrap().value, b"400");
}
