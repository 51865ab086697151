//! The conformance suite on every kind of server. On a single server it includes the cases with
//! several processes.

use crate::common::{conforms, open, over_records};
use distlock_conformance::{Subject, Workers};
use distlock_harness::{
    distlock_binary,
    servers::redis::{RedisCluster, RedisSentinels, RedisServer},
};

#[tokio::test(flavor = "multi_thread")]
async fn one_server_conforms() {
    let server = RedisServer::start().unwrap();
    let url = server.url();
    let workers = Workers::new(distlock_binary().unwrap(), ["conformance-worker"], &url);
    let subject = Subject::connect("redis", move || open(url.clone())).await;
    conforms(subject.unwrap().with_workers(workers)).await;
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
    let servers = RedisSentinels::start().unwrap();
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
    let servers = RedisCluster::start(3, 0).unwrap();
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
