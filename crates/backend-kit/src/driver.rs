//! The contract of a driver, which opens one kind of store from a URL.

use std::fmt::Debug;

use async_trait::async_trait;
use distlock_core::{Result, Store};

use crate::{DriverOption, DriverUrl, Drivers, TargetParts};

/// One kind of store: its URLs, its options, and the code that opens it.
#[async_trait]
pub trait Driver: Debug + Send + Sync + 'static {
    /// The name of the backend in messages, for example `redis`.
    fn name(&self) -> &'static str;

    /// The schemes of its URLs in lower case, without the colon. A scheme that ends with `+` is a
    /// prefix: `kv+` stands for `kv+redis` and every other scheme that starts with `kv+`.
    fn schemes(&self) -> &'static [&'static str];

    /// The forms of its URLs, for documentation and help.
    fn urls(&self) -> &'static [DriverUrl];

    /// The options of this kind of store, in the order of the documentation. All stores have the
    /// option `connect_timeout`, which is not listed.
    fn options(&self) -> &'static [DriverOption];

    /// Whether the records of its stores tell their age, as
    /// [`Records::tells_ages`](distlock_core::Records::tells_ages) says of one store.
    fn records_tell_ages(&self) -> bool {
        true
    }

    /// Checks the URL and its options without opening the store.
    ///
    /// # Errors
    /// As [`Driver::open`], for everything that can be checked without the store.
    fn check(&self, parts: TargetParts, drivers: &Drivers) -> Result<()>;

    /// Opens a store. A driver that wraps another store opens that store with `drivers`.
    ///
    /// # Errors
    /// [`InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) with the wrong URL or option; and
    /// the errors of the store.
    ///
    /// # Cancel safety
    /// A drop of the future must leave no connection or file open.
    async fn open(&self, parts: TargetParts, drivers: &Drivers) -> Result<Store>;

    /// Creates or upgrades the store's tables. A store without tables only checks that it can be
    /// opened.
    ///
    /// # Errors
    /// As [`Driver::open`].
    ///
    /// # Cancel safety
    /// Each step must be atomic. After a drop of the future, the next call does the remaining
    /// steps.
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
    /// The names of the steps that this call applied.
    pub applied: Vec<&'static str>,
}

impl Migrated {
    /// The result of a migration to `version` that applied these steps.
    #[must_use]
    pub fn to_version(version: i64, applied: Vec<&'static str>) -> Self {
        Self {
            version: Some(version),
            applied,
        }
    }
}
