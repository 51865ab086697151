//! The driver for locks over records. Its URLs are `kv+` followed by the URL of a store that
//! reports the age of its records.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::{Driver, DriverOption, DriverUrl, Drivers, Migrated, TargetParts};
use distlock_core::{Result, Store};

use crate::KvLock;

const REAP_AFTER: DriverOption = DriverOption::new(
    "kv_reap_after",
    "1 s to 365 d: how long the record of an expired lock stays",
    "1h",
);

const URLS: [DriverUrl; 1] = [DriverUrl::new("kv+URL", "the records of another store")];

/// The driver of locks over the records of another store. Every option except `kv_reap_after` is
/// passed on to that store.
#[derive(Clone, Copy, Debug)]
pub struct KvDriver;

impl KvDriver {
    /// Returns the URL parts of the other store, and the value of `kv_reap_after` if the URL has
    /// one.
    fn inner(
        self,
        mut parts: TargetParts,
        drivers: &Drivers,
    ) -> Result<(TargetParts, Option<Duration>)> {
        let range = Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600);
        let idle = parts.options.take_duration(REAP_AFTER.name, range)?;
        let prefix = self.schemes()[0];
        let inner = parts.scheme.strip_prefix(prefix).unwrap_or_default();
        if inner.is_empty() || inner.starts_with(prefix) {
            return Err(parts.wrong(format_args!(
                "`{prefix}` stands before the URL of another store, as in kv+sqlite:PATH, and \
                 \"{}\" is given",
                parts.masked_url().escape_debug()
            )));
        }
        if drivers
            .of_scheme(inner)
            .is_some_and(|driver| !driver.records_tell_ages())
        {
            return Err(parts.wrong(format_args!(
                "the records of {inner} do not tell their age, so a lock over them could not \
                 expire; its own locks have no `{prefix}`"
            )));
        }
        let inner = inner.to_owned();
        Ok((parts.with_scheme(inner), idle))
    }
}

#[async_trait]
impl Driver for KvDriver {
    fn name(&self) -> &'static str {
        "kv"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["kv+"]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &[REAP_AFTER]
    }

    fn check(&self, parts: TargetParts, drivers: &Drivers) -> Result<()> {
        let (parts, _) = self.inner(parts, drivers)?;
        drivers.check_parts(parts)
    }

    async fn open(&self, parts: TargetParts, drivers: &Drivers) -> Result<Store> {
        let given = parts.clone();
        let (parts, idle) = self.inner(parts, drivers)?;
        let store = drivers.open_parts(parts).await?;
        let mut lock = match KvLock::over(&store) {
            Ok(lock) => lock,
            Err(error) => {
                store.close().await;
                return Err(given.wrong(error));
            }
        };
        if let Some(idle) = idle {
            lock = lock.with_reap_after(idle);
        }
        Ok(Store::with_clock(
            Arc::new(lock),
            store.records(),
            store.clock(),
        ))
    }

    async fn migrate(&self, parts: TargetParts, drivers: &Drivers) -> Result<Migrated> {
        let (parts, _) = self.inner(parts, drivers)?;
        drivers.migrate_parts(parts).await
    }
}
