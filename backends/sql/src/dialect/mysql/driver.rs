//! The driver of MySQL and MariaDB: its URLs and options, and the opening of a store.

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, Migrated, TargetParts};
use distlock_core::{Result, Store};

use super::MySql;
use crate::config::{Product, server_config};

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "mysql://USER@HOST/DATABASE",
    "MySQL or MariaDB",
)];

/// The driver of MySQL and MariaDB.
#[derive(Clone, Copy, Debug)]
pub struct MySqlDriver;

#[async_trait]
impl Driver for MySqlDriver {
    fn name(&self) -> &'static str {
        Product::MySql.name()
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["mysql", "mariadb"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        Product::MySql.options()
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        server_config(self, Product::MySql, &mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let config = server_config(self, Product::MySql, &mut parts)?;
        let store = MySql::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            store.lock(),
            store.records(),
            parts.clock,
        ))
    }

    async fn migrate(&self, mut parts: TargetParts, _: &Drivers) -> Result<Migrated> {
        let config = server_config(self, Product::MySql, &mut parts)?;
        MySql::migrate(config, parts.clock).await
    }
}
