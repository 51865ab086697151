//! Opens quorums.

use std::sync::Arc;

use distlock_backend_kit::{Drivers, Target, percent_encode};
use distlock_conformance::{Subject, run};
use distlock_core::{Result, Store};
use distlock_harness::servers::redis::RedisServer;
use distlock_memory::MemoryDriver;
use distlock_quorum::QuorumDriver;
use distlock_redis::RedisDriver;
use distlock_sql::ServerDriver;

/// The drivers of members and of the quorum.
pub(crate) fn drivers() -> Drivers {
    Drivers::new()
        .with(Arc::new(MemoryDriver))
        .with(Arc::new(RedisDriver))
        .with(Arc::new(ServerDriver::MySql))
        .with(Arc::new(ServerDriver::Postgres))
        .with(Arc::new(QuorumDriver))
}

/// The URL of a quorum of these members, with the names a, b, c and so on.
pub(crate) fn url_of<'a>(members: impl IntoIterator<Item = &'a str>, max_lease: &str) -> String {
    let named = "abcdefg".chars().zip(members);
    let members = named.map(|(name, url)| format!("member={name}={}&", percent_encode(url)));
    format!(
        "quorum:?{}max_lease={max_lease}",
        members.collect::<String>()
    )
}

pub(crate) fn url_of_servers(servers: &[RedisServer], max_lease: &str) -> String {
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    url_of(urls.iter().map(String::as_str), max_lease)
}

pub(crate) fn redis_servers(count: usize) -> Vec<RedisServer> {
    (0..count).map(|_| RedisServer::start().unwrap()).collect()
}

/// Opens the quorum, with records in a memory store of this process.
pub(crate) async fn open(url: &str) -> Result<Store> {
    let drivers = drivers();
    let records = drivers.open("memory:records").await?;
    let store = drivers.open(Target::new(url)).await?;
    Ok(store.with_records_of(&records))
}

/// Runs the suite; `CASE` names the part to run.
pub(crate) async fn conforms(subject: Subject) {
    let filter = std::env::var("CASE").ok();
    let results = run(&subject, filter.as_deref()).await;
    let failed: Vec<_> = results.iter().filter(|result| result.failed()).collect();
    let names: Vec<_> = failed.iter().map(|result| result.name).collect();
    assert!(failed.is_empty(), "failed: {names:?}\n{failed:#?}");
    assert!(!results.is_empty(), "no case of this name");
}
