//! Settings of the servers that prevent the backend from working, or weaken it. The error or the
//! finding names the setting and the remedy.

use distlock_core::{ErrorKind, Finding, Locker, Verdict};
use distlock_harness::servers::zookeeper::{Setup, ZooKeeper};
use zookeeper_client as zk;

use crate::{
    access::{open_refused, single_server},
    fixtures::{config, eventually, hold, locker, raw_client, release_cleanly},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_error_names_max_client_cnxns_when_a_server_is_full() {
    let server = ZooKeeper::start_with(&single_server(&["maxClientCnxns=1"])).unwrap();
    let ours = locker(&server.servers()).await;
    let guard = hold(&ours, "a").await;
    let error = open_refused(config(&server.servers())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("maxClientCnxns"), "{error}");
    release_cleanly(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_asks_an_administrator_to_create_the_root() {
    let server = ZooKeeper::start_with(&single_server(&[])).unwrap();
    let administrator = raw_client(&server.servers()).await;
    let ours = zk::CreateMode::Persistent.with_acls(zk::Acls::creator_all());
    administrator.mkdir("/team", &ours).await.unwrap();
    let reads = [zk::Acl::new(zk::Permission::READ, zk::AuthId::anyone())];
    administrator.set_acl("/team", &reads, None).await.unwrap();
    let mut wanted = config(&server.servers());
    wanted.root = "/team/app".into();
    let error = open_refused(wanted.clone()).await;
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(error.to_string().contains("/team/app"), "{error}");
    assert!(error.to_string().contains("create it"), "{error}");
}

/// A session that moves to another server gets at most the timeout that this server allows. The
/// client library does not report that, so health must report it.
#[tokio::test(flavor = "multi_thread")]
async fn health_fails_when_a_server_grants_shorter_sessions() {
    let mut server = ZooKeeper::start_with(&single_server(&[])).unwrap();
    let ours = locker(&server.servers()).await;
    assert_eq!(limits(&ours).await[0].verdict, Verdict::Pass);
    server.restart_with(0, &["maxSessionTimeout=1000"]).unwrap();
    server.wait_until_serving().unwrap();
    eventually("the ensemble serves again", async || {
        ours.health().await.is_ok().then_some(())
    })
    .await;
    let found = limits(&ours).await;
    assert_eq!(found[0].verdict, Verdict::Fail, "{found:?}");
    assert!(found[0].detail.contains("maxSessionTimeout"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_warns_when_a_server_refuses_the_largest_request() {
    let setup = Setup {
        java: vec!["-Djute.maxbuffer=200000".into()],
        ..single_server(&[])
    };
    let server = ZooKeeper::start_with(&setup).unwrap();
    let ours = locker(&server.servers()).await;
    let guard = hold(&ours, "a").await;
    let found = limits(&ours).await;
    assert_eq!(found[0].verdict, Verdict::Warn, "{found:?}");
    assert!(found[0].detail.contains("jute.maxbuffer"), "{found:?}");
    // Health tried the limit on another connection, so the guard is still valid.
    assert!(guard.is_valid());
    release_cleanly(guard).await;
}

async fn limits(locker: &Locker) -> Vec<Finding> {
    let health = locker.health().await.unwrap();
    let mut found = health.findings;
    found.retain(|finding| finding.check == "limits");
    found
}
