//! Members that die, hang, and come back empty.

use std::time::Duration;

use distlock_core::{Attempt, Clock as _, ErrorKind, SystemClock};
use distlock_harness::{Signal, eventually_async};
use distlock_quorum::init;

use crate::common::{drivers, open, redis_servers, url_of, url_of_servers};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_survives_the_loss_of_any_one_member() {
    for lost in 0..3 {
        let mut servers = redis_servers(3);
        let url = url_of_servers(&servers, "30s");
        init(url.as_str(), &drivers(), false).await.unwrap();
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let lock = one.locker().lock("held").ttl(Duration::from_secs(2));
        let guard = lock.acquire().await.unwrap();
        servers[lost].kill();
        let since = SystemClock.now();
        while SystemClock.now().since(since) < Duration::from_secs(5) {
            assert!(guard.is_valid(), "lost with member {lost}");
            let attempt = two.locker().lock("held").try_acquire().await;
            assert!(matches!(attempt, Ok(Attempt::Busy(_))), "{attempt:?}");
        }
        let token = guard.token();
        assert!(guard.release().await.is_clean());
        let next = two.locker().lock("held").acquire().await.unwrap();
        assert!(next.token() > token);
        assert!(next.release().await.is_clean());
        one.close().await;
        two.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_hangs_delays_no_acquire_for_long() {
    let servers = redis_servers(3);
    let url = url_of_servers(&servers, "30s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let store = open(&url).await.unwrap();
    servers[2].signal(Signal::STOP).unwrap();
    for _ in 0..200 {
        let guard = store.locker().lock("a").acquire().await.unwrap();
        assert!(guard.release().await.is_clean());
    }
    servers[2].signal(Signal::CONT).unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_came_back_empty_is_silent_until_forgotten_leases_are_over() {
    let mut servers = redis_servers(3);
    let url = url_of_servers(&servers, "4s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let first = one
        .locker()
        .lock("held")
        .ttl(Duration::from_secs(4))
        .acquire()
        .await
        .unwrap();
    // Two of three forget the lock one after the other, and the holder is told in time.
    servers[0].restart_empty().unwrap();
    assert!(first.is_valid());
    servers[1].restart_empty().unwrap();
    let second = loop {
        let lock = two.locker().lock("held").wait(Duration::from_secs(1));
        match lock.acquire().await {
            Ok(guard) => break guard,
            Err(error) => {
                assert!(matches!(
                    error.kind(),
                    ErrorKind::Timeout | ErrorKind::Unavailable
                ));
            }
        }
    };
    assert!(!first.is_valid(), "two guards are valid");
    assert!(second.token() > first.token());
    assert!(second.release().await.is_clean());
    eventually_async("all members vote", SOON, || async {
        let health = two.backend().health().await.ok()?;
        let all = health
            .findings
            .iter()
            .filter(|it| it.detail.ends_with(": votes"))
            .count();
        (all == 3).then_some(())
    })
    .await
    .unwrap();
    one.close().await;
    two.close().await;
}

/// The members that granted after the round was decided have other tokens than the lease.
#[tokio::test(flavor = "multi_thread")]
async fn an_inspection_without_a_member_tells_the_token_of_the_lease() {
    for lost in 0..3 {
        let mut servers = redis_servers(3);
        let url = url_of_servers(&servers, "30s");
        init(url.as_str(), &drivers(), false).await.unwrap();
        let (one, two) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let (holder, other) = (one.locker(), two.locker());
        let mut held = Vec::new();
        for at in 0..20 {
            let name = format!("inspected-{at}");
            let lock = holder.lock(&name).ttl(Duration::from_secs(30));
            held.push((name, lock.acquire().await.unwrap()));
        }
        SystemClock.sleep(Duration::from_secs(1)).await;
        servers[lost].kill();
        for (name, guard) in &held {
            let told = other.inspect(name.as_str()).await.unwrap().held.unwrap();
            assert_eq!(told.token, Some(guard.token()), "without member {lost}");
        }
        for (_, guard) in held {
            assert!(guard.release().await.is_clean());
        }
        one.close().await;
        two.close().await;
    }
}

/// A round without a majority leaves its tokens on the members that granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_no_majority_tells_is_not_shown_as_the_last_one() {
    let members = ["memory:last-a", "memory:last-b", "memory:last-c"];
    let url = url_of(members, "30s");
    init(url.as_str(), &drivers(), false).await.unwrap();
    let store = open(&url).await.unwrap();
    for member in members {
        let alone = drivers().open(member).await.unwrap();
        let granted = alone.locker().lock("left").acquire().await.unwrap();
        assert!(granted.release().await.is_clean());
    }
    let told = store.locker().inspect("left").await.unwrap();
    assert_eq!((told.held, told.last_token), (None, None));
    store.close().await;
}
