//! Opens rings.

use std::{path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, TargetParts, percent_encode};
use distlock_core::{Result, Store, SystemClock};
use distlock_harness::servers::redis::RedisServer;
use distlock_memory::{Memory, MemoryDriver};
use distlock_redis::RedisDriver;
use distlock_remote::RemoteDriver;
use distlock_ring::{RingDriver, Terms};
use distlock_server::{LockServer, ServerConfig, StateOptions};
use distlock_sql::{ServerDriver, SqliteDriver};

/// A quarantine of 1.25 s.
pub(crate) const SHORT: Terms = Terms {
    validity: Duration::from_millis(200),
    max_lease: Duration::from_secs(1),
};

/// The drivers of members and of the ring.
pub(crate) fn drivers() -> Drivers {
    Drivers::new()
        .with(Arc::new(MemoryDriver))
        .with(Arc::new(RedisDriver))
        .with(Arc::new(RemoteDriver))
        .with(Arc::new(ServerDriver::Postgres))
        .with(Arc::new(SqliteDriver))
        .with(Arc::new(RingDriver))
}

/// The URL of a ring of these members, with the names a, b, c and so on.
pub(crate) fn url_of<'a>(records: &str, members: impl IntoIterator<Item = &'a str>) -> String {
    let named = "abcdefg".chars().zip(members);
    let members = named.map(|(name, url)| format!("&member={name}={}", percent_encode(url)));
    format!(
        "ring:?records={}{}",
        percent_encode(records),
        members.collect::<String>()
    )
}

/// Servers that lose no acknowledged write.
pub(crate) fn redis_servers(count: usize) -> Vec<RedisServer> {
    let start = |_| RedisServer::with(&["appendfsync always"]).unwrap();
    (0..count).map(start).collect()
}

/// The ring of these servers, with the first one as ring store.
pub(crate) fn url_of_servers(servers: &[RedisServer]) -> String {
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    url_of(&urls[0], urls.iter().map(String::as_str))
}

/// Starts a lock server in memory, as the article's, and returns its URL.
pub(crate) async fn lock_server(folder: &Path, name: &str, max_lease: Duration) -> String {
    let state = StateOptions {
        path: folder.join(format!("{name}.state")),
        is_new: true,
    };
    let mut config = ServerConfig::default();
    config.listen = Some("127.0.0.1:0".to_owned());
    config.max_lease = max_lease;
    let records = open(&format!("memory:{name}")).await.unwrap().records();
    let starting = LockServer::start_in_memory(config, state, records, Arc::new(SystemClock));
    let server = starting.await.unwrap();
    let url = server.url().to_owned();
    tokio::spawn(server.run(std::future::pending()));
    url
}

pub(crate) async fn open(url: &str) -> Result<Store> {
    drivers().open(url).await
}

/// The driver of stores in memory that have layers around them.
#[derive(Debug)]
pub(crate) struct LayeredDriver {
    pub(crate) schemes: &'static [&'static str],
    pub(crate) layers: fn(Store) -> Store,
}

#[async_trait]
impl Driver for LayeredDriver {
    fn name(&self) -> &'static str {
        "layered"
    }

    fn schemes(&self) -> &'static [&'static str] {
        self.schemes
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &[]
    }

    fn options(&self) -> &'static [DriverOption] {
        &[]
    }

    fn check(&self, _: TargetParts, _: &Drivers) -> Result<()> {
        Ok(())
    }

    async fn open(&self, parts: TargetParts, _: &Drivers) -> Result<Store> {
        let memory = Memory::shared(&parts.body);
        let store = Store::with_clock(memory.lock(), memory.records(), parts.clock);
        Ok((self.layers)(store))
    }
}
