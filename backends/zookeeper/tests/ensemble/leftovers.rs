//! What is left in the tree when everybody has gone, and that it goes in time.

use std::{sync::Arc, time::Duration};

use distlock_core::{
    Deleted, Expect, Locker, RecordKey, Records, SystemClock, Version, Written, encode,
};
use distlock_harness::servers::zookeeper::{Setup, ZooKeeper};
use distlock_zookeeper::ZooKeeper as Backend;
use zookeeper_client as zk;

use crate::rig::{config, container, eventually, give_back, hold, stranger};

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_needs_any_more_goes() {
    let server = ZooKeeper::start_with(&Setup {
        servers: 1,
        // A minute, unless told otherwise.
        java: vec!["-Dznode.container.checkIntervalMs=50".into()],
        ..Setup::default()
    })
    .unwrap();
    let mut config = config(&server.servers());
    config.session_timeout = Duration::from_secs(2);
    config.reap_after = config.session_timeout * 2;
    let opened = Backend::open(config, Arc::new(SystemClock)).await.unwrap();
    let client = stranger(&server.servers()).await;
    the_place_of_a_name(&Locker::new(opened.lock()), &client).await;
    the_mark_of_a_record(&*opened.records(), &client).await;
}

async fn is_there(client: &zk::Client, path: &str) -> bool {
    client.sync("/").await.unwrap();
    client.check_stat(path).await.unwrap().is_some()
}

/// The servers remove it, because it is a container.
async fn the_place_of_a_name(locker: &Locker, client: &zk::Client) {
    let guard = hold(locker, "a").await;
    assert!(is_there(client, &container("a")).await);
    give_back(guard).await;
    eventually("removed", async || {
        (!is_there(client, &container("a")).await).then_some(())
    })
    .await;
    give_back(hold(locker, "a").await).await;
    locker.close().await;
}

/// Whoever scans removes it when it is old enough.
async fn the_mark_of_a_record(records: &dyn Records, client: &zk::Client) {
    let key = |text: &str| RecordKey::new(text).unwrap();
    let (marked, later) = (key("marked"), key("later"));
    let path = format!("/distlock/records/{}", encode("marked"));
    let first = written_and_deleted(records, &marked).await;
    assert!(
        is_there(client, &path).await,
        "its version is not forgotten"
    );
    eventually("removed", async || {
        // What was written last tells what time it is on the servers.
        written_and_deleted(records, &later).await;
        assert!(records.scan("", None, 10).await.unwrap().is_empty());
        (!is_there(client, &path).await).then_some(())
    })
    .await;
    let again = written_and_deleted(records, &marked).await;
    assert!(again > first, "{again:?} after {first:?}");
    records.close().await;
}

async fn written_and_deleted(records: &dyn Records, key: &RecordKey) -> Version {
    let written = records.put(key, b"v", Expect::Absent).await.unwrap();
    let Written::Stored(version) = written else {
        panic!("{key:?} was deleted");
    };
    let deleted = records.delete(key, version).await.unwrap();
    assert_eq!(deleted, Deleted::Done);
    version
}
