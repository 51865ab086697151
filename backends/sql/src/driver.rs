//! The driver of database servers: their URLs and options, and the opening of a store.

use async_trait::async_trait;
use distlock_backend_kit::{
    Driver, DriverOption, DriverUrl, Drivers, Migrated, TargetParts, blame,
};
use distlock_core::{Result, Store};

#[cfg(feature = "mysql")]
use crate::MySql;
#[cfg(feature = "postgres")]
use crate::Postgres;
use crate::config::{Product, ServerConfig};

/// The driver of one server product.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ServerDriver {
    /// The driver of MySQL and MariaDB.
    #[cfg(feature = "mysql")]
    MySql,
    /// The driver of Postgres.
    #[cfg(feature = "postgres")]
    Postgres,
}

impl ServerDriver {
    const fn product(self) -> Product {
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql => Product::MySql,
            #[cfg(feature = "postgres")]
            Self::Postgres => Product::Postgres,
        }
    }

    /// Reads the configuration from the URL and the options in `parts`.
    fn config(self, parts: &mut TargetParts) -> Result<ServerConfig> {
        debug_assert_eq!(Product::of(&parts.scheme), Some(self.product()));
        let mut config = blame::parse(&self, parts, |parts, options| {
            ServerConfig::from_url_parts(&parts.scheme, &parts.body, options)
        })?;
        config.connect_timeout = parts.own_connect_timeout();
        config.provider = parts.credentials.clone();
        Ok(config)
    }
}

#[async_trait]
impl Driver for ServerDriver {
    fn name(&self) -> &'static str {
        self.product().name()
    }

    fn schemes(&self) -> &'static [&'static str] {
        self.product().schemes()
    }

    fn urls(&self) -> &'static [DriverUrl] {
        self.product().urls()
    }

    fn options(&self) -> &'static [DriverOption] {
        self.product().options()
    }

    fn check(&self, mut parts: TargetParts, _: &Drivers) -> Result<()> {
        self.config(&mut parts).map(drop)
    }

    async fn open(&self, mut parts: TargetParts, _: &Drivers) -> Result<Store> {
        let (config, clock) = (self.config(&mut parts)?, parts.clock);
        Ok(match self {
            #[cfg(feature = "mysql")]
            Self::MySql => MySql::open(config, clock.clone()).await?.into_store(clock),
            #[cfg(feature = "postgres")]
            Self::Postgres => {
                let store = Postgres::open(config, clock.clone()).await?;
                store.into_store(clock)
            }
        })
    }

    async fn migrate(&self, mut parts: TargetParts, _: &Drivers) -> Result<Migrated> {
        let config = self.config(&mut parts)?;
        match self {
            #[cfg(feature = "mysql")]
            Self::MySql => MySql::migrate(config, parts.clock).await,
            #[cfg(feature = "postgres")]
            Self::Postgres => Postgres::migrate(config, parts.clock).await,
        }
    }
}
