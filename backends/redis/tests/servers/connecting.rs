//! Attempts to connect whose first caller leaves, or is never polled again.

use crate::common::{SOON, redis, within};
use distlock_core::{DistLock, LockName};
use distlock_harness::{Direction, FaultProxy, eventually_async, servers::redis::RedisServer};
use futures_util::FutureExt as _;

/// Breaks the connection, and holds back the server's answers to the next attempt to connect. That
/// attempt is in progress when this function returns.
async fn hold_back_next_connection(proxy: &FaultProxy, lock: &dyn DistLock, name: &LockName) {
    proxy.stop(Direction::ToClient);
    proxy.reset();
    eventually_async("a connection is being made", SOON, || async {
        let refused = lock.inspect(name).await.is_err();
        (refused && proxy.connections() == 1).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_is_not_polled_does_not_block_connecting() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let redis = redis(&server.url_at(proxy.address())).await;
    let (lock, name) = (redis.unwrap().lock(), LockName::new("a").unwrap());
    hold_back_next_connection(&proxy, &*lock, &name).await;
    let mut first = lock.inspect(&name);
    assert!(first.as_mut().now_or_never().is_none());
    proxy.pass();
    let second = eventually_async("the client is connected", SOON, || async {
        lock.inspect(&name).await.ok()
    });
    second.await.unwrap();
    within(SOON, "the first as well", first).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_being_made_is_given_up_on_closing() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.address()).await.unwrap();
    let redis = redis(&server.url_at(proxy.address())).await.unwrap();
    let (lock, name) = (redis.lock(), LockName::new("a").unwrap());
    hold_back_next_connection(&proxy, &*lock, &name).await;
    redis.records().close().await;
    lock.close().await;
    proxy.pass();
    eventually_async("no connection is left", SOON, || async {
        (proxy.connections() == 0).then_some(())
    })
    .await
    .unwrap();
}
