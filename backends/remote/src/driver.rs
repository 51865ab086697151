//! The driver for the lock server: its URLs, and the opening of a store.

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, TargetParts};
use distlock_core::{Result, Store};

use crate::{Remote, RemoteConfig, config::OPTIONS, error::BACKEND};

const URLS: [DriverUrl; 3] = [
    DriverUrl::new(
        "distlock://HOST:PORT,HOST:PORT,..",
        "the store of a lock server (`distlock serve`), or of several that serve one store",
    ),
    DriverUrl::new("distlocks://HOST:PORT,..", "the same by TLS"),
    DriverUrl::new(
        "distlock://localhost?socket=PATH",
        "a lock server on this host, by its Unix socket",
    ),
];

/// The driver of the lock server.
#[derive(Clone, Copy, Debug)]
pub struct RemoteDriver;

#[async_trait]
impl Driver for RemoteDriver {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["distlock", "distlocks"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &OPTIONS
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        RemoteConfig::from_target(&mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let config = RemoteConfig::from_target(&mut parts)?;
        let remote = Remote::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            remote.lock(),
            remote.records(),
            parts.clock,
        ))
    }
}
