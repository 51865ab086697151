//! Queue entries that are given up while the ensemble cannot be reached.

use std::time::Duration;

use distlock_harness::{FaultProxy, servers::zookeeper::ZooKeeper};

use crate::{
    fixtures::{
        SESSION, contenders, enter_queue, eventually, hold, locker, pause, raw_client,
        release_cleanly,
    },
    partitions::{mend_all, start_proxies},
};

/// A waiter gives up while it can reach no server. The servers become reachable again before the
/// session is lost.
pub(crate) async fn an_entry_given_up_while_cut_off_is_deleted(ensemble: &ZooKeeper) {
    let (proxies, servers) = start_proxies(ensemble).await;
    let (cut_off, direct) = (locker(&servers).await, locker(&ensemble.servers()).await);
    let client = raw_client(&ensemble.servers()).await;
    let kept = hold(&cut_off, "kept").await;
    let ahead = hold(&direct, "given up").await;
    let waiting = enter_queue(&cut_off, "given up").await;
    assert_eq!(contenders(&client, "given up").await.len(), 2);
    kept.extend(SESSION).await.unwrap();
    for proxy in &proxies {
        proxy.black_hole();
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // The first deletion request is lost in this time.
    pause(Duration::from_millis(500)).await;
    mend_all(&proxies);
    eventually("its entry is gone", async || {
        (contenders(&client, "given up").await.len() == 1).then_some(())
    })
    .await;
    assert!(kept.is_valid(), "and not because its session ended");
    release_cleanly(ahead).await;
    release_cleanly(kept).await;
    cut_off.close().await;
    direct.close().await;
}

/// The server releases the lock, and the answer is lost.
pub(crate) async fn a_release_with_a_lost_answer_is_clean(ensemble: &ZooKeeper) {
    let proxy = FaultProxy::start(ensemble.address(0)).await.unwrap();
    let cut_off = locker(&ensemble.reached_at(&[proxy.address()])).await;
    let client = raw_client(&ensemble.servers()).await;
    for round in 0..8 {
        let guard = hold(&cut_off, "released").await;
        proxy.swallow_one_reply();
        release_cleanly(guard).await;
        let present = contenders(&client, "released").await;
        assert!(present.is_empty(), "round {round}: {present:?}");
    }
    cut_off.close().await;
}
