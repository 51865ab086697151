//! The counters of tokens and versions. A counter never expires. Whatever happens to a counter, the
//! next number is higher than the last one.

use std::time::Duration;

use crate::common::{SOON, locker, redis, request, take, within};
use distlock_core::{
    Attempt, Deleted, DistLock, Expect, FencingToken, HandOver, Lease, RecordKey, Records,
    ReleaseOutcome, Version, Written,
};
use distlock_harness::servers::redis::RedisServer;
use futures_util::future::join_all;

const LONG: Duration = Duration::from_secs(60);

fn counters(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*}:counter"]).unwrap();
    keys.lines().map(str::to_owned).collect()
}

async fn put(records: &dyn Records, key: &RecordKey, expect: Expect) -> Version {
    match records.put(key, b"v", expect).await.unwrap() {
        Written::Stored(version) => version,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_never_expire() {
    let server = RedisServer::start().unwrap();
    let mut tasks = Vec::new();
    for process in 0..3 {
        let locker = locker(&server.url()).await;
        for task in 0..4 {
            let locker = locker.clone();
            tasks.push(async move {
                for name in ["a", "b", "c"] {
                    let wanted = locker.lock(name).ttl(LONG).wait(SOON);
                    let guard = wanted.acquire().await.unwrap();
                    let released = guard.release().await;
                    assert!(released.is_clean(), "{process} {task} {name}");
                }
            });
        }
    }
    within(SOON, "everybody had a turn", join_all(tasks)).await;
    let records = redis(&server.url()).await.unwrap().records();
    let key = RecordKey::new("r").unwrap();
    put(&*records, &key, Expect::Absent).await;
    let counters = counters(&server);
    assert_eq!(counters.len(), 4, "{counters:?}");
    for counter in counters {
        let left = server.command(&["PTTL", &counter]).unwrap();
        assert_eq!(left, "-1", "{counter}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_rise_across_a_deleted_counter() {
    let server = RedisServer::start().unwrap();
    let records = redis(&server.url()).await.unwrap().records();
    let key = RecordKey::new("r").unwrap();
    let first = put(&*records, &key, Expect::Absent).await;
    let deleted = records.delete(&key, first).await.unwrap();
    assert_eq!(deleted, Deleted::Done);
    let [counter] = &*counters(&server) else {
        panic!("one counter");
    };
    assert_eq!(server.command(&["DEL", counter]).unwrap(), "1");
    let second = put(&*records, &key, Expect::Absent).await;
    assert!(second > first);
    let third = put(&*records, &key, Expect::Version(second)).await;
    assert!(third > second);
}

/// Another program has replaced the counters by values of another type. The test tries every type.
#[tokio::test(flavor = "multi_thread")]
async fn a_counter_of_another_type_is_replaced_by_a_higher_one() {
    let server = RedisServer::start().unwrap();
    let store = redis(&server.url()).await.unwrap();
    let (lock, records) = (store.lock(), store.records());
    let names: Vec<_> = (0..64).map(|n| format!("n{n}")).collect();
    let mut last = acquire_and_release_all(&*lock, &names).await;
    let key = RecordKey::new("n0").unwrap();
    let mut version = put(&*records, &key, Expect::Absent).await;
    for other in [
        &["RPUSH"][..],
        &["SADD"],
        &["HSET", "field"],
        &["ZADD", "1"],
        &["SET"],
    ] {
        let spoil = || {
            for counter in counters(&server) {
                server.command(&["DEL", &counter]).unwrap();
                let command = [&other[..1], &[&counter], &other[1..], &["none"]].concat();
                server.command(&command).unwrap();
            }
        };
        spoil();
        let alone = acquire_and_release_all(&*lock, &names[..1]).await;
        assert!(alone[0] > last[0], "{other:?}, alone");
        last[0] = alone[0];
        spoil();
        let together = acquire_and_release_all(&*lock, &names).await;
        assert!(
            together.iter().zip(&last).all(|(now, before)| now > before),
            "{other:?}, together"
        );
        last = together;
        for count in [1, names.len()] {
            let given = hand_over(&*lock, &names[..count], spoil).await;
            assert!(
                given.iter().zip(&last).all(|(now, before)| now > before),
                "{other:?}, {count} handed over"
            );
            last.splice(..count, given);
        }
        spoil();
        let next = put(&*records, &key, Expect::Version(version)).await;
        assert!(next > version, "{other:?}");
        version = next;
    }
    // The keys are counters again.
    acquire_and_release_all(&*lock, &names).await;
    for counter in counters(&server) {
        let number = server.command(&["GET", &counter]).unwrap();
        assert!(number.len() == 16 && number.parse::<u64>().is_ok());
    }
}

/// Acquires and releases locks at the same time, and returns their tokens. The first few use one
/// request each; the others share requests.
async fn acquire_and_release_all(lock: &dyn DistLock, names: &[String]) -> Vec<FencingToken> {
    let taken = names.iter().map(|name| async move {
        let wanted = request(name, LONG);
        match lock.try_acquire(&wanted).await.unwrap() {
            Attempt::Acquired(grant) => {
                Lease::new(wanted.name.clone(), wanted.owner, Some(grant.token))
            }
            busy @ Attempt::Busy(_) => panic!("{name}: {busy:?}"),
        }
    });
    let leases = join_all(taken).await;
    let freed = leases.iter().map(|lease| lock.release(lease));
    for freed in join_all(freed).await {
        assert!(matches!(freed.unwrap(), ReleaseOutcome::Released { .. }));
    }
    leases.iter().filter_map(|lease| lease.token).collect()
}

/// Acquires locks, runs `before`, hands all locks over at the same time, and releases them. Returns
/// the tokens of the hand-overs.
async fn hand_over(lock: &dyn DistLock, names: &[String], before: impl Fn()) -> Vec<FencingToken> {
    let mut leases = Vec::new();
    for name in names {
        let wanted = request(name, LONG);
        let grant = take(lock, &wanted).await;
        leases.push(Lease::new(wanted.name, wanted.owner, Some(grant.token)));
    }
    before();
    let given = leases.iter().map(|lease| async move {
        let next = request(lease.name.as_str(), LONG);
        let HandOver::Done(grant) = lock.hand_over(lease, &next).await.unwrap() else {
            panic!("{}: not ours", lease.name);
        };
        assert!(Some(grant.token) > lease.token);
        let heir = Lease::new(next.name, next.owner, Some(grant.token));
        lock.release(&heir).await.unwrap();
        grant.token
    });
    join_all(given).await
}
