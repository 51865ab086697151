//! The driver for ZooKeeper: its URLs, and the opening of a store.

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, TargetParts, blame};
use distlock_core::{Result, Store};

use crate::{ZooKeeper, ZooKeeperConfig};

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "zookeeper://HOST,HOST,../ROOT",
    "a ZooKeeper ensemble",
)];

/// The driver of ZooKeeper ensembles.
#[derive(Clone, Copy, Debug)]
pub struct ZooKeeperDriver;

impl ZooKeeperDriver {
    fn config(self, parts: &mut TargetParts) -> Result<ZooKeeperConfig> {
        let mut config = blame::parse(&self, parts, |parts, options| {
            ZooKeeperConfig::from_target(parts, options)
        })?;
        // The remaining quarter is for asking each server why there is no session.
        config.connect_timeout = parts.connect_timeout * 3 / 4;
        Ok(config)
    }
}

#[async_trait]
impl Driver for ZooKeeperDriver {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["zookeeper"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &ZooKeeperConfig::OPTIONS
    }

    fn records_tell_ages(&self) -> bool {
        false
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        self.config(&mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let config = self.config(&mut parts)?;
        let zookeeper = ZooKeeper::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            zookeeper.lock(),
            zookeeper.records(),
            parts.clock,
        ))
    }
}
