//! The driver for the lock server: its URLs, and the opening of a store.

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, TargetParts};
use distlock_core::{Result, Store};

use crate::{
    Remote, RemoteConfig,
    config::{REQUEST_TIMEOUT, REQUEST_TIMEOUTS},
    error::BACKEND,
};

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "distlock://HOST:PORT,HOST:PORT,..",
    "the store of a lock server (`distlock serve`), or of several that serve one store",
)];

/// The driver of the lock server.
#[derive(Clone, Copy, Debug)]
pub struct RemoteDriver;

impl RemoteDriver {
    fn config(self, parts: &mut TargetParts) -> Result<RemoteConfig> {
        let mut options = std::mem::take(&mut parts.options);
        let timeout = options.take_duration(REQUEST_TIMEOUT.name, REQUEST_TIMEOUTS)?;
        options.finish(self.name())?;
        let mut config =
            RemoteConfig::parse(&parts.body).map_err(|error| parts.wrong(error.message()))?;
        if let Some(timeout) = timeout {
            config.request_timeout = timeout;
        }
        config.connect_timeout = parts.own_connect_timeout();
        Ok(config)
    }
}

#[async_trait]
impl Driver for RemoteDriver {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["distlock"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &[REQUEST_TIMEOUT]
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        self.config(&mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let config = self.config(&mut parts)?;
        let remote = Remote::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            remote.lock(),
            remote.records(),
            parts.clock,
        ))
    }
}
