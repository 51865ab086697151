//! Settings of the servers that no client can make up for: what is wrong is said, and what to do.

use distlock_core::ErrorKind;
use distlock_harness::servers::zookeeper::ZooKeeper;
use zookeeper_client as zk;

use crate::{
    access::{alone, refused},
    rig::{config, give_back, hold, locker, stranger},
};

#[tokio::test(flavor = "multi_thread")]
async fn no_room_for_another_connection() {
    let server = ZooKeeper::start_with(&alone(&["maxClientCnxns=1"])).unwrap();
    let ours = locker(&server.servers()).await;
    let guard = hold(&ours, "a").await;
    let error = refused(config(&server.servers())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("maxClientCnxns"), "{error}");
    give_back(guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_only_the_administrator_can_make() {
    let server = ZooKeeper::start_with(&alone(&[])).unwrap();
    let administrator = stranger(&server.servers()).await;
    let everybody = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    administrator.mkdir("/team", &everybody).await.unwrap();
    let reads = [zk::Acl::new(zk::Permission::READ, zk::AuthId::anyone())];
    administrator.set_acl("/team", &reads, None).await.unwrap();
    let mut wanted = config(&server.servers());
    wanted.root = "/team/app".into();
    let error = refused(wanted.clone()).await;
    assert_eq!(error.kind(), ErrorKind::AccessDenied, "{error}");
    assert!(error.to_string().contains("/team/app"), "{error}");
    assert!(error.to_string().contains("create it"), "{error}");
}
