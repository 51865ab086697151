//! The removal of unused nodes: containers, and marks of deleted records.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    Deleted, Expect, Locker, RecordKey, Records, SystemClock, Version, Written, encode,
};
use distlock_harness::servers::zookeeper::{Setup, ZooKeeper};
use distlock_zookeeper::ZooKeeper as Backend;
use zookeeper_client as zk;

use crate::fixtures::{config, container_path, eventually, hold, raw_client, release_cleanly};

#[tokio::test(flavor = "multi_thread")]
async fn unused_nodes_are_removed() {
    let server = ZooKeeper::start_with(&Setup {
        servers: 1,
        // The interval at which the servers look for empty containers; the default is a minute.
        java: vec!["-Dznode.container.checkIntervalMs=50".into()],
        ..Setup::default()
    })
    .unwrap();
    let mut config = config(&server.servers());
    config.session_timeout = Duration::from_secs(2);
    config.reap_after = config.session_timeout * 2;
    let opened = Backend::open(config, Arc::new(SystemClock)).await.unwrap();
    let client = raw_client(&server.servers()).await;
    an_unused_container_is_removed(&Locker::new(opened.lock()), &client).await;
    an_old_deletion_mark_is_removed(&*opened.records(), &client).await;
}

async fn node_exists(client: &zk::Client, path: &str) -> bool {
    client.sync("/").await.unwrap();
    client.check_stat(path).await.unwrap().is_some()
}

/// The servers remove the parent of a lock's contenders when it has no children, because the parent
/// is a container.
async fn an_unused_container_is_removed(locker: &Locker, client: &zk::Client) {
    let guard = hold(locker, "a").await;
    assert!(node_exists(client, &container_path("a")).await);
    release_cleanly(guard).await;
    eventually("the node is removed", async || {
        (!node_exists(client, &container_path("a")).await).then_some(())
    })
    .await;
    release_cleanly(hold(locker, "a").await).await;
    locker.close().await;
}

/// A scan removes a mark that is old enough.
async fn an_old_deletion_mark_is_removed(records: &dyn Records, client: &zk::Client) {
    let key = |text: &str| RecordKey::new(text).unwrap();
    let (marked, later) = (key("marked"), key("later"));
    let path = format!("/distlock/records/{}", encode("marked"));
    let first = put_and_delete(records, &marked).await;
    assert!(
        node_exists(client, &path).await,
        "its version is not forgotten"
    );
    eventually("the node is removed", async || {
        // The backend takes the time of the last write as the present time.
        put_and_delete(records, &later).await;
        assert!(records.scan("", None, 10).await.unwrap().is_empty());
        (!node_exists(client, &path).await).then_some(())
    })
    .await;
    let again = put_and_delete(records, &marked).await;
    assert!(again > first, "{again:?} after {first:?}");
    records.close().await;
}

async fn put_and_delete(records: &dyn Records, key: &RecordKey) -> Version {
    let written = records.put(key, b"v", Expect::Absent).await.unwrap();
    let Written::Stored(version) = written else {
        panic!("{key:?} was deleted");
    };
    let deleted = records.delete(key, version).await.unwrap();
    assert_eq!(deleted, Deleted::Done);
    version
}

/// A write may be in flight as long as its session lives. The ensemble may grant a longer session
/// than the configuration requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_mark_outlasts_a_session_longer_than_requested() {
    let granted = Duration::from_secs(60);
    let millis = granted.as_millis();
    let server = ZooKeeper::start_with(&Setup {
        servers: 1,
        settings: vec![
            format!("minSessionTimeout={millis}"),
            format!("maxSessionTimeout={millis}"),
        ],
        ..Setup::default()
    })
    .unwrap();
    let mut config = config(&server.servers());
    config.session_timeout = Duration::from_secs(1);
    config.reap_after = config.session_timeout * 2;
    let reap_after = i64::try_from(config.reap_after.as_millis()).unwrap();
    let opened = Backend::open(config, Arc::new(SystemClock)).await.unwrap();
    let records = opened.records();
    let key = |text: &str| RecordKey::new(text).unwrap();
    put_and_delete(&*records, &key("marked")).await;
    let client = raw_client(&server.servers()).await;
    let path = |text: &str| format!("/distlock/records/{}", encode(text));
    let written = async |text: &str| {
        client.sync("/").await.unwrap();
        let stat = client.check_stat(&path(text)).await.unwrap();
        stat.map(|stat| stat.mtime)
    };
    let marked = written("marked").await.unwrap();
    // The backend takes the time of the last write as the present time.
    eventually("old enough by the clock of the server", async || {
        put_and_delete(&*records, &key("later")).await;
        (written("later").await? > marked + reap_after).then_some(())
    })
    .await;
    assert!(records.scan("", None, 10).await.unwrap().is_empty());
    // The server processes the requests of the scan before this read.
    assert_eq!(records.get(&key("marked")).await.unwrap(), None);
    assert_eq!(
        written("marked").await,
        Some(marked),
        "removed before a session of {granted:?} may have ended"
    );
    records.close().await;
}
