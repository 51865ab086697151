//! The watch over real servers.

use std::time::Duration;

use distlock_core::{Clock as _, SystemClock, at_most};
use distlock_harness::servers::redis::RedisServer;
use distlock_ring::{Watch, WatchChange, init, show};

use crate::common::{SHORT, drivers, open, redis_servers, url_of, url_of_servers};

/// Looks until the watch has changed something.
async fn next_change(watch: &mut Watch) -> WatchChange {
    let clock = SystemClock;
    let looking = async {
        loop {
            if let Some(change) = watch.look().await.unwrap() {
                return change;
            }
            clock.sleep(Duration::from_millis(100)).await;
        }
    };
    let change = at_most(&clock, Duration::from_secs(20), looking).await;
    change.expect("a change within 20 s")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_watch_removes_a_dead_member_and_adds_it_back() {
    let mut servers = redis_servers(3);
    let url = url_of_servers(&servers);
    init(url.as_str(), &drivers(), SHORT, true).await.unwrap();
    let dead_after = Duration::from_millis(500);
    let mut watch = Watch::open(url.as_str(), &drivers(), dead_after)
        .await
        .unwrap();
    assert_eq!(watch.look().await.unwrap(), None);
    servers[1].kill();
    let removed = next_change(&mut watch).await;
    assert!(
        matches!(&removed, WatchChange::Removed { member, .. } if member == "b"),
        "{removed:?}"
    );
    let active = || async {
        let shown = show(url.as_str(), &drivers()).await.unwrap();
        let active = shown.members.into_iter().filter(|member| member.active);
        active.map(|member| member.name).collect::<String>()
    };
    assert_eq!(active().await, "ac");
    // Another watch takes over, and knows what the first one has done.
    watch.close().await;
    let mut watch = Watch::open(url.as_str(), &drivers(), dead_after)
        .await
        .unwrap();
    assert_eq!(watch.look().await.unwrap(), None);
    servers[1].restart().unwrap();
    let added = next_change(&mut watch).await;
    let member = "b".to_owned();
    assert_eq!(added, WatchChange::Added { member });
    assert_eq!(active().await, "abc");
    watch.close().await;
}

/// The clock of a member is an hour ahead, and so are its tokens. The watch removes it, and the
/// tokens of its names rise none the less.
#[tokio::test(flavor = "multi_thread")]
async fn the_watch_removes_a_fast_clock_and_no_token_falls() {
    let servers = redis_servers(2);
    let fast = RedisServer::with_clock(&[]).unwrap();
    fast.put_clock_forward(Duration::from_secs(3600)).unwrap();
    let urls = [servers[0].url(), fast.url(), servers[1].url()];
    let url = url_of(&urls[0], urls.iter().map(String::as_str));
    init(url.as_str(), &drivers(), SHORT, true).await.unwrap();
    let store = open(&url).await.unwrap();
    let locker = store.locker();
    let take = async |name: &String| {
        let lock = locker.lock(name).wait(Duration::from_secs(20));
        let guard = lock.acquire().await.unwrap();
        let token = guard.token();
        assert!(guard.release().await.is_clean());
        token
    };
    let names: Vec<_> = (0..12).map(|number| format!("n{number}")).collect();
    let mut before = Vec::new();
    for name in &names {
        before.push(take(name).await);
    }
    let dead_after = Duration::from_secs(5);
    let known = drivers();
    let watch = Watch::open(url.as_str(), &known, dead_after).await;
    let mut watch = watch.unwrap();
    let removed = next_change(&mut watch).await;
    let WatchChange::Removed { member, reason, .. } = removed else {
        panic!("{removed:?}");
    };
    assert_eq!(member, "b");
    assert!(reason.contains("its clock differs"), "{reason}");
    watch.close().await;
    for (name, before) in names.iter().zip(before) {
        let (first, second) = (take(name).await, take(name).await);
        assert!(first > before && second > first, "{name}: a token fell");
    }
    store.close().await;
}
