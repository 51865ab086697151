//! The conformance suite on Redis behind two agents.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use distlock_backend_kit::{Drivers, Target};
use distlock_conformance::{Subject, run};
use distlock_core::{Result, Store};
use distlock_harness::servers::redis::RedisServer;
use distlock_redis::RedisDriver;
use distlock_remote::RemoteDriver;
use distlock_server::{LockServer, ServerConfig};

/// Starts an agent that serves until the end of the test, and returns its address.
async fn agent(behind: &str) -> String {
    let store = Drivers::new()
        .with(Arc::new(RedisDriver))
        .open(behind)
        .await;
    let mut config = ServerConfig::default();
    config.listen = Some("127.0.0.1:0".to_owned());
    let server = LockServer::start(config, store.unwrap()).await.unwrap();
    let address = server.address().unwrap().to_string();
    tokio::spawn(server.run(std::future::pending()));
    address
}

async fn open(url: &str) -> Result<Store> {
    let drivers = Drivers::new().with(Arc::new(RemoteDriver));
    drivers.open(Target::new(url)).await
}

/// Runs the suite; `CASE` names the part to run.
async fn conforms(subject: Subject) {
    let filter = std::env::var("CASE").ok();
    let results = run(&subject, filter.as_deref()).await;
    let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
    let names: Vec<_> = failed.iter().map(|result| result.name).collect();
    assert!(failed.is_empty(), "failed: {names:?}\n{failed:#?}");
    assert!(!results.is_empty(), "no case of this name");
}

/// Every other client uses the other agent.
#[tokio::test(flavor = "multi_thread")]
async fn redis_behind_two_agents_conforms() {
    let server = RedisServer::start().unwrap();
    let (first, second) = (agent(&server.url()).await, agent(&server.url()).await);
    let urls = [
        format!("distlock://{first},{second}"),
        format!("distlock://{second},{first}"),
    ];
    let opened = AtomicUsize::new(0);
    let subject = Subject::connect("two_agents_redis", move || {
        let next = opened.fetch_add(1, Ordering::Relaxed) % urls.len();
        let url = urls[next].clone();
        async move { open(&url).await }
    });
    conforms(subject.await.unwrap()).await;
}
