//! The watch over real servers.

use std::time::Duration;

use distlock_core::{Clock as _, SystemClock, at_most};
use distlock_ring::{Watch, WatchChange, init, show};

use crate::common::{SHORT, drivers, redis_servers, url_of_servers};

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
