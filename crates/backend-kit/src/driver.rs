//! The contract of a driver, which opens one kind of store from a URL: its code, and its URLs and
//! options for help texts and documentation.

use std::fmt::Debug;

use async_trait::async_trait;
use distlock_core::{Result, Store};

use crate::{Drivers, TargetParts};

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

    /// Creates the store's missing tables. A store without tables only checks that it can be
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
    /// The result for the store of the records; `None` if the records are in the same store.
    pub records: Option<Box<Self>>,
}

impl Migrated {
    /// The result of a migration to `version` that applied these steps.
    #[must_use]
    pub fn to_version(version: i64, applied: Vec<&'static str>) -> Self {
        Self {
            version: Some(version),
            applied,
            records: None,
        }
    }
}

/// One option of a kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverOption {
    /// The name of the option, as in `?name=value`.
    pub name: &'static str,
    /// The values of the option and their effect.
    pub help: &'static str,
    /// The default, in words or as a value; empty if the option has no default.
    pub default: &'static str,
}

impl DriverOption {
    /// The option `connect_timeout`, which [`Target`](crate::Target) reads for every driver. A
    /// driver includes the option in its own list only if the driver's own URL parser reads the
    /// option, too.
    pub const CONNECT_TIMEOUT: Self = Self::new(
        "connect_timeout",
        "100 ms to 60 s: how long opening may take",
        "5s",
    );

    /// An option with its help text and its default.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str, default: &'static str) -> Self {
        Self {
            name,
            help,
            default,
        }
    }
}

/// One form of URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverUrl {
    /// The form, with the variable parts in capitals, for example `redis://HOST:PORT`.
    pub form: &'static str,
    /// The store that such a URL names.
    pub store: &'static str,
}

impl DriverUrl {
    /// A form of URL, and the store that such a URL names.
    #[must_use]
    pub const fn new(form: &'static str, store: &'static str) -> Self {
        Self { form, store }
    }
}
