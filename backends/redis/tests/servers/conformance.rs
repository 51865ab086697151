//! The conformance suite on every kind of server, with the versions spread over the kinds: the
//! distribution's Redis as a single server, Redis 8 with sentinels, and Valkey 9 as a cluster. On a
//! single server it includes the cases with several processes, and the user has only the documented
//! rights.

use crate::{
    access::server_with_the_documented_user,
    common::{conforms, open, over_records},
};
use distlock_conformance::{Subject, Workers};
use distlock_harness::{
    distlock_binary,
    servers::redis::{Flavour, RedisCluster, RedisSentinels, RedisServer},
};

#[tokio::test(flavor = "multi_thread")]
async fn one_server_conforms_for_a_user_with_only_the_documented_acl() {
    let (server, url) = server_with_the_documented_user();
    let workers = Workers::new(distlock_binary().unwrap(), ["conformance-worker"], &url);
    let subject = Subject::connect("redis", move || open(url.clone())).await;
    conforms(subject.unwrap().with_workers(workers)).await;
    // The client tried only one command that the list does not permit: the reading of settings,
    // which health may report as unknown.
    let denied = server.command(&["ACL", "LOG"]).unwrap();
    assert!(!denied.contains("canary"), "{denied}");
    let objects = denied.lines().collect::<Vec<_>>();
    let denied: Vec<_> = objects
        .windows(2)
        .filter(|pair| pair[0] == "object")
        .map(|pair| pair[1])
        .collect();
    assert!(denied.iter().all(|it| *it == "config|get"), "{denied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_over_records_conforms() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    let subject = Subject::connect("redis_records", move || over_records(url.clone())).await;
    conforms(subject.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_conform() {
    let servers = RedisSentinels::start_flavour(Flavour::Redis8).unwrap();
    // The doctor fails without these settings. The lag is generous, because the machine is busy.
    for (setting, value) in [
        ("min-replicas-max-lag", "10"),
        ("min-replicas-to-write", "1"),
    ] {
        let words = ["CONFIG", "SET", setting, value];
        assert_eq!(servers.primary.command(&words).unwrap(), "OK");
    }
    let url = servers.url();
    let subject = Subject::connect("redis_sentinel", move || open(url.clone())).await;
    conforms(subject.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_conforms() {
    let servers = RedisCluster::start_flavour(Flavour::Valkey9, 3).unwrap();
    let url = servers.url();
    let subject = Subject::connect("redis_cluster", move || open(url.clone())).await;
    conforms(subject.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_over_records_of_a_cluster_conforms() {
    let servers = RedisCluster::start(3, 0).unwrap();
    let url = servers.url();
    let subject =
        Subject::connect("redis_cluster_records", move || over_records(url.clone())).await;
    conforms(subject.unwrap()).await;
}
