//! Servers newer than those of the distribution: Valkey 9 and Redis 8.

use crate::common::{conforms, open, redis};
use distlock_conformance::Subject;
use distlock_core::Verdict;
use distlock_harness::servers::redis::{Flavour, RedisServer};

#[tokio::test(flavor = "multi_thread")]
async fn valkey_conforms() {
    let server = RedisServer::start_flavour(Flavour::Valkey9, &[]).unwrap();
    let url = server.url();
    let subject = Subject::connect("valkey", move || open(url.clone())).await;
    conforms(subject.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_8_conforms() {
    let server = RedisServer::start_flavour(Flavour::Redis8, &[]).unwrap();
    let url = server.url();
    let subject = Subject::connect("redis_8", move || open(url.clone())).await;
    conforms(subject.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_knows_newer_servers() {
    for (flavour, name) in [(Flavour::Valkey9, "Valkey "), (Flavour::Redis8, "Redis ")] {
        let server = RedisServer::start_flavour(flavour, &["appendfsync always"]).unwrap();
        let store = redis(&server.url()).await.unwrap();
        let health = store.lock().health().await.unwrap();
        assert!(health.server.starts_with(name), "{health:?}");
        for found in &health.findings {
            assert_eq!(found.verdict, Verdict::Pass, "{found:?}");
        }
        assert!(health.epoch.is_some());
    }
}
