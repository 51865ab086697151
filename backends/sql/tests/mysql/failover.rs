//! A replica that has not received everything is promoted.

use distlock_core::LossReason;
use distlock_harness::{FaultProxy, eventually_async, servers::mysql::Product};

use crate::{
    locker, on_both,
    servers::{LONG, SOON, hold, within},
    start,
};

on_both! {
    after_a_failover_a_loss_is_reported => after_a_failover_a_loss_is_reported;
}

async fn after_a_failover_a_loss_is_reported(product: Product) {
    let mut primary = start(product);
    let proxy = FaultProxy::start(primary.address()).await.unwrap();
    let url = primary.url_at(proxy.address());
    let before = locker(&url).await;
    let kept = hold(&before, "kept", LONG).await;
    let replica = primary.crash_and_copy().unwrap();
    // Grants that the replica never receives.
    let lost = eventually_async("the primary is found again", SOON, || async {
        before.lock("lost").ttl(LONG).acquire().await.ok()
    })
    .await
    .unwrap();
    let freed = hold(&before, "freed", LONG).await;
    let (lost_token, freed_token) = (lost.token(), freed.token());
    assert!(freed.release().await.is_clean());
    let epoch = lost.epoch();
    proxy.redirect(replica.address());
    primary.kill();

    // All connections are opened again, and each renewal reads the rows of the new primary.
    let told = async {
        while lost.is_valid() {
            let _ = lost.extend(LONG).await;
        }
        lost.lost().await
    };
    assert_eq!(within(SOON, "told", told).await, LossReason::HistoryChanged);
    eventually_async("still ours", SOON, || async {
        kept.extend(LONG).await.ok()
    })
    .await
    .unwrap();
    assert!(kept.is_valid());
    let after = locker(&url).await;
    for (name, token) in [("lost", lost_token), ("freed", freed_token)] {
        let guard = within(SOON, name, hold(&after, name, LONG)).await;
        assert!(guard.token() > token, "{name}");
        assert_ne!(guard.epoch(), epoch, "{name}");
        assert!(guard.release().await.is_clean());
    }
    assert!(kept.release().await.is_clean());
}
