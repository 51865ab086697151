//! The conformance suite on three servers.

use std::time::Duration;

use distlock_conformance::{Subject, run};
use distlock_ring::{Terms, init};

use crate::common::{drivers, open, redis_servers, url_of_servers};

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
