//! The driver of SQLite: its URLs and options, and the opening of a store.

use async_trait::async_trait;
use distlock_backend_kit::{
    Driver, DriverOption, DriverUrl, Drivers, Migrated, TargetParts, blame, percent_decode,
};
use distlock_core::{Result, Store};

use super::{Sqlite, SqliteConfig};

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "sqlite:PATH",
    "a file shared by the processes of one host",
)];

/// The driver of SQLite files.
#[derive(Clone, Copy, Debug)]
pub struct SqliteDriver;

impl SqliteDriver {
    fn config(self, parts: &mut TargetParts) -> Result<SqliteConfig> {
        blame::parse(&self, parts, |parts, options| {
            // `sqlite:///path` is the same as `sqlite:/path`.
            let path = parts.body.strip_prefix("//").unwrap_or(&parts.body);
            let path = percent_decode(path)
                .ok_or_else(|| parts.wrong("the path of the SQLite file is not UTF-8"))?;
            SqliteConfig::from_url_parts(&path, options)
        })
    }
}

#[async_trait]
impl Driver for SqliteDriver {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["sqlite"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &SqliteConfig::OPTIONS
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        self.config(&mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let config = self.config(&mut parts)?;
        let store = Sqlite::open(config, parts.clock.clone()).await?;
        Ok(store.into_store(parts.clock))
    }

    async fn migrate(&self, mut parts: TargetParts, _: &Drivers) -> Result<Migrated> {
        let config = self.config(&mut parts)?;
        Sqlite::migrate(config, parts.clock).await
    }
}
