//! The driver for Redis: its URLs, and the opening of a store.

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, TargetParts, blame};
use distlock_core::{Result, Store};

use crate::{config::RedisConfig, error::BACKEND};

const URLS: [DriverUrl; 4] = [
    DriverUrl::new("redis://HOST:PORT", "Redis or Valkey"),
    DriverUrl::new("rediss://HOST:PORT", "the same over TLS"),
    DriverUrl::new("redis+sentinel://HOST,HOST,../PRIMARY", "behind Sentinel"),
    DriverUrl::new("redis+cluster://HOST,HOST,..", "a Redis Cluster"),
];

/// The driver of Redis and Valkey.
#[derive(Clone, Copy, Debug)]
pub struct RedisDriver;

impl RedisDriver {
    fn config(self, parts: &mut TargetParts) -> Result<RedisConfig> {
        let mut config = blame::parse(&self, parts, |parts, options| {
            RedisConfig::from_target(parts, options)
        })?;
        config.connect_timeout = parts.own_connect_timeout();
        Ok(config)
    }
}

#[async_trait]
impl Driver for RedisDriver {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["redis", "redis+cluster", "redis+sentinel", "rediss"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &RedisConfig::OPTIONS
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        self.config(&mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let config = self.config(&mut parts)?;
        let redis = crate::Redis::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            redis.lock(),
            redis.records(),
            parts.clock,
        ))
    }
}
