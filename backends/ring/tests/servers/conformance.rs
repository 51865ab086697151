//! The conformance suite on three Redis servers, on three lock servers, and on a mixture.

use std::time::Duration;

use distlock_conformance::{Subject, run};
use distlock_harness::servers::{postgres::PostgresServer, redis::RedisServer};
use distlock_ring::{Terms, init};

use crate::common::{drivers, lock_server, open, redis_servers, url_of, url_of_servers};

/// The suite holds locks for 30 s.
const LONGEST: Duration = Duration::from_secs(60);

/// The parts of the suite in which it matters that members are of different kinds: reasons of a
/// loss, tokens, what a list of all members shows, how a lock is handed over, tickets, and shared
/// locks.
const OF_A_MIXTURE: [&str; 7] = [
    "loss::",
    "fencing::",
    "token_floor::",
    "inspect::",
    "handover::",
    "tickets::",
    "shared::",
];

/// Runs these parts of the suite; `CASE` names another part to run.
async fn conform(name: &'static str, url: String, parts: &[&str]) {
    let terms = Terms {
        max_lease: LONGEST,
        ..Terms::default()
    };
    init(url.as_str(), &drivers(), terms, true).await.unwrap();
    let subject = Subject::connect(name, move || {
        let url = url.clone();
        async move { open(&url).await }
    });
    let subject = subject.await.unwrap();
    let case = std::env::var("CASE").ok();
    let parts = case.as_deref().map_or(parts.to_vec(), |case| vec![case]);
    for part in parts {
        let results = run(&subject, Some(part)).await;
        let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
        let names: Vec<_> = failed.iter().map(|result| result.name).collect();
        assert!(failed.is_empty(), "failed: {names:?}\n{failed:#?}");
        assert!(!results.is_empty(), "no case of this name");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_conform() {
    let servers = redis_servers(3);
    conform("ring_redis", url_of_servers(&servers), &[""]).await;
}

/// The article's servers: they keep the locks in memory, and know nothing of each other.
#[tokio::test(flavor = "multi_thread")]
async fn three_lock_servers_conform() {
    let folder = tempfile::tempdir().unwrap();
    let mut urls = Vec::new();
    for name in ["first", "second", "third"] {
        urls.push(lock_server(folder.path(), name, LONGEST).await);
    }
    let ring_store = RedisServer::start().unwrap();
    let url = url_of(&ring_store.url(), urls.iter().map(String::as_str));
    conform("ring_lock_servers", url, &[""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_server_redis_and_postgres_conform() {
    let folder = tempfile::tempdir().unwrap();
    let lock_server = lock_server(folder.path(), "mixed", LONGEST).await;
    let redis = RedisServer::start().unwrap();
    // The suite checks the doctor's report, and the harness starts Postgres without syncs.
    let postgres = PostgresServer::with(&["fsync=on"]).unwrap();
    let members = [&lock_server, &redis.url(), &postgres.url()];
    let url = url_of(&redis.url(), members.map(String::as_str));
    conform("ring_mixture", url, &OF_A_MIXTURE).await;
}
