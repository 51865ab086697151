//! The drivers that a program opens stores with: the built-in drivers, and drivers of the program.

use std::sync::Arc;

use distlock_backend_kit::{Driver, Drivers, Migrated, Target};
use distlock_core::{Locker, Result, Store};

/// The drivers with which a program opens stores.
///
/// [`open`](crate::open) and [`connect`](crate::connect) use the built-in drivers. A program with a
/// backend of its own adds its driver:
///
/// ```
/// # async fn example(driver: impl distlock::backend::Driver) -> distlock::Result<()> {
/// let registry = distlock::Registry::builtin().with(driver);
/// let store = registry.open("directory:/var/lib/app/locks").await?;
/// # store.close().await; Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Registry {
    drivers: Drivers,
}

/// Makes the list of the built-in drivers. A row has the feature of this crate that includes a
/// driver, the driver, and each URL scheme of the driver with the features that URLs of this scheme
/// need. Errors, suggestions, help texts, `distlock doctor`, reports and the documentation are made
/// from this list.
macro_rules! builtin {
    ($($feature:literal $driver:path, $(($scheme:literal, $features:literal))+;)+) => {{
        let drivers = Drivers::new();
        $(
            let drivers = drivers $(.brought_by($scheme, $features))+;
            #[cfg(feature = $feature)]
            let drivers = drivers.with(Arc::new($driver));
        )+
        drivers
    }};
}

impl Registry {
    /// The drivers of this build.
    #[must_use]
    pub fn builtin() -> Self {
        let drivers = builtin! {
            "sqlite" distlock_sql::SqliteDriver, ("sqlite", "sqlite");
            "redis" distlock_redis::RedisDriver, ("redis", "redis") ("redis+cluster", "redis")
                ("redis+sentinel", "redis") ("rediss", "redis,tls");
            "mysql" distlock_sql::ServerDriver::MySql, ("mysql", "mysql") ("mariadb", "mysql");
            "postgres" distlock_sql::ServerDriver::Postgres, ("postgres", "postgres")
                ("postgresql", "postgres");
            "zookeeper" distlock_zookeeper::ZooKeeperDriver, ("zookeeper", "zookeeper");
            "memory" distlock_memory::MemoryDriver, ("memory", "memory");
            "kv" distlock_kv::KvDriver, ("kv+", "kv");
            "quorum" distlock_quorum::QuorumDriver, ("quorum", "quorum");
            "remote" distlock_remote::RemoteDriver, ("distlock", "remote")
                ("distlocks", "remote,tls");
            "ring" distlock_ring::RingDriver, ("ring", "ring");
        };
        Self { drivers }
    }

    /// Adds a driver. If two drivers have the same scheme, the driver that was added last opens the
    /// URLs of this scheme.
    #[must_use]
    pub fn with(self, driver: impl Driver) -> Self {
        Self {
            drivers: self.drivers.with(Arc::new(driver)),
        }
    }

    /// The drivers, for help texts and documentation.
    #[must_use]
    pub fn drivers(&self) -> &Drivers {
        &self.drivers
    }

    /// Opens a store as [`open`](crate::open) does.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open(&self, target: impl Into<Target>) -> Result<Store> {
        self.drivers.open(target).await
    }

    /// Opens a store and returns its [`Locker`], as [`connect`](crate::connect) does.
    ///
    /// # Errors
    /// As [`open`](crate::open).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn connect(&self, target: impl Into<Target>) -> Result<Locker> {
        Ok(self.open(target).await?.locker())
    }

    /// Creates a store's missing tables, as [`migrate`](crate::migrate) does.
    ///
    /// # Errors
    /// As [`open`](crate::open), and any error with which the store refuses a change of its tables.
    ///
    /// # Cancel safety
    /// Each step is atomic. Dropping the future may leave the remaining steps for the next call.
    pub async fn migrate(&self, target: impl Into<Target>) -> Result<Migrated> {
        self.drivers.migrate(target).await
    }
}

impl Default for Registry {
    /// The drivers of this build.
    fn default() -> Self {
        Self::builtin()
    }
}
