//! The contract between one kind of store and the list of all kinds.

use std::fmt::Debug;

use async_trait::async_trait;
use distlock_core::{Result, Store};

use crate::{DriverOption, DriverUrl, Drivers, TargetParts};

/// One kind of store: which URLs are its own, which options it takes, and how it is opened.
#[async_trait]
pub trait Driver: Debug + Send + Sync + 'static {
    /// The name of the backend in messages, for example `redis`.
    fn name(&self) -> &'static str;

    /// The schemes of its URLs in lower case, without the colon. A scheme that ends with `+` is a
    /// prefix: `kv+` stands for `kv+redis` and every other scheme that begins so.
    fn schemes(&self) -> &'static [&'static str];

    /// The forms of its URLs, for documentation and help.
    fn urls(&self) -> &'static [DriverUrl];

    /// The options that this kind of store takes, in the order of the documentation. All stores
    /// take `connect_timeout`, which is not listed.
    fn options(&self) -> &'static [DriverOption];

    /// Reads the URL and its options, and opens nothing.
    ///
    /// # Errors
    /// As [`Driver::open`], for everything that can be told without the store.
    fn check(&self, parts: TargetParts, drivers: &Drivers) -> Result<()>;

    /// Opens a store. A driver that wraps another store opens it with `drivers`.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a URL or an option that is
    /// wrong, which is named; and whatever the store refuses.
    ///
    /// # Cancel safety
    /// Dropping the future must leave nothing open.
    async fn open(&self, parts: TargetParts, drivers: &Drivers) -> Result<Store>;

    /// Creates or upgrades the store's tables. A store without tables only checks that it can be
    /// opened.
    ///
    /// # Errors
    /// As [`Driver::open`].
    ///
    /// # Cancel safety
    /// Each step must be atomic; dropping the future may leave later ones for the next call.
    async fn migrate(&self, parts: TargetParts, drivers: &Drivers) -> Result<Migrated> {
        self.open(parts, drivers).await?.close().await;
        Ok(Migrated::default())
    }
}

/// The result of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// The version of the tables now; `None` for a backend without tables.
    pub version: Option<i64>,
    /// The steps that this call took.
    pub applied: Vec<&'static str>,
}

impl Migrated {
    /// Tables of this version, after these steps.
    #[must_use]
    pub fn to_version(version: i64, applied: Vec<&'static str>) -> Self {
        Self {
            version: Some(version),
            applied,
        }
    }
}
