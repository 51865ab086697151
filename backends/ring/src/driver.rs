//! The driver for rings: opens the members and the ring store with the drivers of the program.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_backend_kit::{
    Driver, DriverOption, DriverUrl, Drivers, MemberHandle, Members, Migrated, TargetParts,
};
use distlock_core::{ErrorKind, Result, Store};

use crate::{
    config::{self, RingConfig},
    leases::Leases,
    lock::{RingLock, capabilities},
    reads::{self, Views},
    shared::{NAME, Shared, all_open},
};

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "ring:?records=URL&member=NAME=URL&..",
    "several stores, each of which has a part of the names",
)];

/// The driver of locks whose names are spread over several stores.
#[derive(Clone, Copy, Debug)]
pub struct RingDriver;

#[async_trait]
impl Driver for RingDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn schemes(&self) -> &'static [&'static str] {
        &[NAME]
    }

    fn urls(&self) -> &'static [DriverUrl] {
        &URLS
    }

    fn options(&self) -> &'static [DriverOption] {
        &[config::RECORDS, config::MEMBER, config::UNSAFE_RECORDS]
    }

    fn check(&self, parts: TargetParts, drivers: &Drivers) -> Result<()> {
        RingConfig::from_parts(parts, drivers).map(drop)
    }

    async fn open(&self, parts: TargetParts, drivers: &Drivers) -> Result<Store> {
        let clock = Arc::clone(&parts.clock);
        let config = RingConfig::from_parts(parts, drivers)?;
        let (opened, loses) = config.open_records(drivers).await?;
        let opening = async {
            // The records of the opened store are closed with it, whatever its locks do.
            let view = opened.records().reopen().await?;
            let members = Members::open(config.members, drivers, 1, config::check_member);
            Ok((view, members.await?))
        };
        let (view, members) = match opening.await {
            Ok(parts) => parts,
            Err(error) => {
                opened.close().await;
                return Err(error);
            }
        };
        all_open(&members, &*clock).await;
        let records = opened.records();
        let ring_store = MemberHandle {
            lock: opened.backend(),
            records: view,
        };
        let mut shared = Shared {
            capabilities: members.weakest_capabilities(NAME),
            members,
            ring_store,
            views: Arc::new(Views::new()),
            leases: Arc::new(Leases::default()),
            clock: Arc::clone(&clock),
            spawner: drivers.spawner().clone(),
        };
        if let Err(error) = check(&shared, loses).await {
            shared.close().await;
            records.close().await;
            return Err(error);
        }
        let seen = shared.views.last()?;
        shared.capabilities = capabilities(shared.capabilities, seen.view.max_lease());
        let lock = RingLock::new(shared.start());
        Ok(Store::with_clock(Arc::new(lock), records, clock))
    }

    async fn migrate(&self, parts: TargetParts, drivers: &Drivers) -> Result<Migrated> {
        let RingConfig {
            members, records, ..
        } = RingConfig::from_parts(parts, drivers)?;
        let mut all = Migrated::default();
        for target in members.into_iter().map(|it| it.target).chain([records]) {
            let migrated = drivers.migrate(target).await?;
            all.version = all.version.max(migrated.version);
            all.applied.extend(migrated.applied);
        }
        Ok(all)
    }
}

/// Reads the view for the first time, and refuses members that are wrong. Nobody would notice
/// before one of their names is locked. `loses` is what the ring store may lose in a crash.
async fn check(shared: &Shared, loses: Duration) -> Result<()> {
    for member in shared.members.all() {
        if let Err(error) = member.begin()
            && error.kind() == ErrorKind::InvalidConfig
        {
            return Err(error);
        }
    }
    reads::read(shared).await?;
    let seen = shared.views.last()?;
    config::check_lease(loses, seen.view.max_lease())?;
    seen.view
        .members
        .iter()
        .try_for_each(|name| shared.place_of(name).map(drop))
}
