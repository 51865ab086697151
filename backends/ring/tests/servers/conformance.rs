//! The conformance suite on three Redis servers, and on three lock servers.

use std::{sync::Arc, time::Duration};

use distlock_conformance::{Subject, run};
use distlock_core::SystemClock;
use distlock_harness::servers::redis::RedisServer;
use distlock_ring::{Terms, init};
use distlock_server::{LockServer, ServerConfig, StateOptions};

use crate::common::{drivers, open, redis_servers, url_of, url_of_servers};

/// Runs the suite; `CASE` names the part to run.
async fn conform(name: &'static str, url: String) {
    // The suite holds locks for 30 s.
    let terms = Terms {
        max_lease: Duration::from_secs(60),
        ..Terms::default()
    };
    init(url.as_str(), &drivers(), terms, true).await.unwrap();
    let subject = Subject::connect(name, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    let filter = std::env::var("CASE").ok();
    let results = run(&subject.await.unwrap(), filter.as_deref()).await;
    let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
    let names: Vec<_> = failed.iter().map(|result| result.name).collect();
    assert!(failed.is_empty(), "failed: {names:?}\n{failed:#?}");
    assert!(!results.is_empty(), "no case of this name");
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_conform() {
    let servers = redis_servers(3);
    conform("ring_redis", url_of_servers(&servers)).await;
}

/// The article's servers: they keep the locks in memory, and know nothing of each other.
#[tokio::test(flavor = "multi_thread")]
async fn three_lock_servers_conform() {
    let folder = tempfile::tempdir().unwrap();
    let mut urls = Vec::new();
    for number in 0..3 {
        let state = StateOptions {
            path: folder.path().join(format!("{number}.state")),
            is_new: true,
        };
        let mut config = ServerConfig::default();
        config.listen = Some("127.0.0.1:0".to_owned());
        let records = open(&format!("memory:server-{number}"))
            .await
            .unwrap()
            .records();
        let clock = Arc::new(SystemClock);
        let server = LockServer::start_in_memory(config, state, records, clock);
        let server = server.await.unwrap();
        urls.push(server.url().to_owned());
        tokio::spawn(server.run(std::future::pending()));
    }
    let ring_store = RedisServer::start().unwrap();
    let url = url_of(&ring_store.url(), urls.iter().map(String::as_str));
    conform("ring_lock_servers", url).await;
}
