//! Marks of deleted records.

use std::{sync::Arc, time::Duration};

use distlock_core::{Deleted, Expect, RecordKey, Records, SystemClock, Version, Written, encode};
use distlock_harness::servers::zookeeper::{Setup, ZooKeeper};
use distlock_zookeeper::ZooKeeper as Backend;

use crate::fixtures::{config, eventually, raw_client};

async fn put(records: &dyn Records, key: &RecordKey) -> Version {
    match records.put(key, b"v", Expect::Absent).await.unwrap() {
        Written::Stored(version) => version,
        Written::Conflict => panic!("{key:?} was deleted"),
    }
}

async fn put_and_delete(records: &dyn Records, key: &RecordKey) {
    let version = put(records, key).await;
    let deleted = records.delete(key, version).await.unwrap();
    assert_eq!(deleted, Deleted::Done);
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
