//! The driver of Postgres: its URLs and options, and the opening of a store.

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, Migrated, TargetParts};
use distlock_core::{Result, Store};

use super::Postgres;
use crate::config::{Product, server_config};

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "postgres://USER@HOST/DATABASE",
    "PostgreSQL",
)];

/// The driver of Postgres.
#[derive(Clone, Copy, Debug)]
pub struct PostgresDriver;

#[async_trait]
impl Driver for PostgresDriver {
    fn name(&self) -> &'static str {
        Product::Postgres.name()
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["postgres", "postgresql"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        Product::Postgres.options()
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        server_config(self, Product::Postgres, &mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let config = server_config(self, Product::Postgres, &mut parts)?;
        let store = Postgres::open(config, parts.clock.clone()).await?;
        Ok(Store::with_clock(
            store.lock(),
            store.records(),
            parts.clock,
        ))
    }

    async fn migrate(&self, mut parts: TargetParts, _: &Drivers) -> Result<Migrated> {
        let config = server_config(self, Product::Postgres, &mut parts)?;
        Postgres::migrate(config, parts.clock).await
    }
}
