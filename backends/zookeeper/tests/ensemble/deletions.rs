//! Places that are given up while the ensemble cannot be told.

use std::time::Duration;

use distlock_harness::{FaultProxy, servers::zookeeper::ZooKeeper};

use crate::{
    cuts::{behind_proxies, mend},
    rig::{SESSION, contenders, eventually, give_back, hold, line_up, locker, pause, stranger},
};

/// Somebody gives up waiting while no server can be reached, and for too short a time to lose the session.
pub(crate) async fn tried_until_done(ensemble: &ZooKeeper) {
    let (proxies, servers) = behind_proxies(ensemble).await;
    let (cut_off, direct) = (locker(&servers).await, locker(&ensemble.servers()).await);
    let client = stranger(&ensemble.servers()).await;
    let kept = hold(&cut_off, "kept").await;
    let ahead = hold(&direct, "given up").await;
    let waiting = line_up(&cut_off, "given up").await;
    assert_eq!(contenders(&client, "given up").await.len(), 2);
    kept.extend(SESSION).await.unwrap();
    for proxy in &proxies {
        proxy.black_hole();
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // The first try is lost.
    pause(Duration::from_millis(500)).await;
    mend(&proxies);
    eventually("its place is gone", async || {
        (contenders(&client, "given up").await.len() == 1).then_some(())
    })
    .await;
    assert!(kept.is_valid(), "and not because its session ended");
    give_back(ahead).await;
    give_back(kept).await;
    cut_off.close().await;
    direct.close().await;
}

/// The lock was released, and nobody was told.
pub(crate) async fn whose_answer_was_lost(ensemble: &ZooKeeper) {
    let proxy = FaultProxy::start(ensemble.address(0)).await.unwrap();
    let cut_off = locker(&ensemble.reached_at(&[proxy.address()])).await;
    let client = stranger(&ensemble.servers()).await;
    for round in 0..8 {
        let guard = hold(&cut_off, "released").await;
        proxy.swallow_one_reply();
        give_back(guard).await;
        let present = contenders(&client, "released").await;
        assert!(present.is_empty(), "round {round}: {present:?}");
    }
    cut_off.close().await;
}
