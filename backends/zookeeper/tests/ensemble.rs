//! The backend on a real three-server ensemble.

use std::{sync::Arc, time::Duration};

use distlock_core::{Attempt, Forced, Locker, LossReason, SystemClock};
use distlock_harness::{eventually_async, servers::zookeeper as servers};
use distlock_zookeeper::{ZooKeeper, ZooKeeperConfig};

const SOON: Duration = Duration::from_secs(20);

async fn open(ensemble: &servers::ZooKeeper) -> ZooKeeper {
    let mut config = ZooKeeperConfig::new(ensemble.servers().split(','));
    config.session_timeout = Duration::from_secs(3);
    ZooKeeper::open(config, Arc::new(SystemClock))
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_passes_between_two_sessions() {
    let ensemble = servers::ZooKeeper::start().unwrap();
    let (first, second) = (open(&ensemble).await, open(&ensemble).await);
    let (ours, theirs) = (Locker::new(first.lock()), Locker::new(second.lock()));

    let guard = ours.lock("x/é").meta("m").acquire().await.unwrap();
    let seen = theirs.inspect("x/é").await.unwrap();
    let holder = seen.held.unwrap();
    assert_eq!(holder.token, Some(guard.token()));
    assert_eq!(holder.meta.as_deref(), Some("m"));
    let listed = theirs.list("").await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].name.as_str(), "x/é");
    let attempt = theirs.lock("x/é").try_acquire().await.unwrap();
    assert!(matches!(attempt, Attempt::Busy(Some(_))), "{attempt:?}");

    let waiting = tokio::spawn(theirs.lock("x/é").acquire());
    eventually_async("the other session stands in the queue", SOON, || async {
        let info = ours.inspect("x/é").await.ok()?;
        (info.waiters == Some(1)).then_some(())
    })
    .await
    .unwrap();
    let token = guard.token();
    assert!(guard.release().await.is_clean());
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token);

    let wrong = ours.force_release("x/é", token).await.unwrap();
    assert_eq!(wrong, Forced::OtherToken(next.token()));
    assert!(next.is_valid());
    let forced = ours.force_release("x/é", next.token()).await.unwrap();
    assert_eq!(forced, Forced::Released);
    assert_eq!(next.lost().await, LossReason::Removed);
    assert!(ours.inspect("x/é").await.unwrap().held.is_none());
}
