//! Waiters, in a process that holds two of three members.

use std::time::Duration;

use distlock_core::{Clock as _, Locker, SystemClock};
use distlock_harness::{Signal, eventually_async, servers::redis::RedisServer};
use distlock_quorum::init;

use crate::common::{drivers, open, redis_servers, url_of, url_of_servers};

const LONG: Duration = Duration::from_secs(20);

/// A memory store reserves a free lock for the first in its queue for half a second. With a dead
/// member, the round of the first waiter needs the memory where it waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_not_refused_by_its_own_place() {
    let mut server = RedisServer::start().unwrap();
    let url = url_of(["memory:own-a", "memory:own-b", &server.url()], "30s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    server.kill();
    let (holder, waiter) = (one.locker(), two.locker());
    let mut waits = Vec::new();
    for _ in 0..9 {
        let held = holder.lock("own").ttl(LONG).acquire().await.unwrap();
        let asking = waiter.lock("own").ttl(LONG).wait(LONG);
        let waiting = tokio::spawn(async move {
            let guard = asking.acquire().await.unwrap();
            let since = SystemClock.now();
            assert!(guard.release().await.is_clean());
            since
        });
        SystemClock.sleep(Duration::from_millis(100)).await;
        let released = SystemClock.now();
        assert!(held.release().await.is_clean());
        waits.push(waiting.await.unwrap().since(released));
    }
    waits.sort_unstable();
    assert!(waits[4] < Duration::from_millis(150), "{waits:?}");
    one.close().await;
    two.close().await;
}

/// A waiter that is not first makes no attempt. Only its look at the member where it waits tells it
/// that the member has stopped.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_leave_a_member_that_has_stopped() {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers, "30s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let first = open(&url).await.unwrap();
    let held = first.locker().lock("stopped").ttl(LONG);
    let held = held.acquire().await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let store = open(&url).await.unwrap();
        let asking = store.locker().lock("stopped").ttl(LONG).wait(LONG);
        waiting.push(tokio::spawn(async move {
            assert!(asking.acquire().await.unwrap().release().await.is_clean());
            store.close().await;
        }));
    }
    let entries = |server: &RedisServer| {
        let keys = server.command(&["KEYS", "*:queue-entry:*"]).unwrap();
        keys.lines().count()
    };
    let queue = eventually_async("both are in the queue of one member", LONG, || async {
        servers.iter().find(|server| entries(server) == 2)
    });
    let queue = queue.await.unwrap();
    queue.signal(Signal::STOP).unwrap();
    let released = SystemClock.now();
    assert!(held.release().await.is_clean());
    for waiter in waiting {
        waiter.await.unwrap();
    }
    let took = SystemClock.now().since(released);
    queue.signal(Signal::CONT).unwrap();
    assert!(took < Duration::from_secs(15), "{took:?}");
    first.close().await;
}

/// The waiters of both clients, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_of_a_process_are_served() {
    let url = url_of(["memory:all-a", "memory:all-b", "memory:all-c"], "30s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let turns = |locker: Locker| async move {
        for _ in 0..20 {
            let lock = locker.lock("all").ttl(LONG).wait(LONG);
            assert!(lock.acquire().await.unwrap().release().await.is_clean());
        }
    };
    let since = SystemClock.now();
    let lockers = (0..8).map(|at| {
        if at % 2 == 0 {
            one.locker()
        } else {
            two.locker()
        }
    });
    let waiters: Vec<_> = lockers.map(|locker| tokio::spawn(turns(locker))).collect();
    for waiter in waiters {
        waiter.await.unwrap();
    }
    let took = SystemClock.now().since(since);
    assert!(took < Duration::from_secs(10), "160 turns took {took:?}");
    one.close().await;
    two.close().await;
}
