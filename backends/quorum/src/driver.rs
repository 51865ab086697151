//! The driver for quorums: opens the members with the drivers of the program.

use std::sync::{Arc, atomic::AtomicBool};

use async_trait::async_trait;
use distlock_backend_kit::{
    Driver, DriverOption, DriverUrl, Drivers, Members, Migrated, TargetParts,
};
use distlock_core::{Clock, ErrorKind, Result, Store, at_most};

use crate::{
    admission,
    config::{self, QuorumConfig},
    lock::{QuorumLock, capabilities},
    reads::MarkerReads,
    records::NoRecords,
    shared::{LATE, NAME, Shared},
};

const URLS: [DriverUrl; 1] = [DriverUrl::new(
    "quorum:?member=NAME=URL&..",
    "a majority of 3, 5 or 7 independent stores",
)];

/// The driver of locks on a majority of stores.
#[derive(Clone, Copy, Debug)]
pub struct QuorumDriver;

#[async_trait]
impl Driver for QuorumDriver {
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
        &[config::MEMBER, config::MAX_LEASE]
    }

    fn records_tell_ages(&self) -> bool {
        false
    }

    fn check(&self, parts: TargetParts, drivers: &Drivers) -> Result<()> {
        QuorumConfig::from_parts(parts, drivers).map(drop)
    }

    async fn open(&self, parts: TargetParts, drivers: &Drivers) -> Result<Store> {
        let clock = Arc::clone(&parts.clock);
        let QuorumConfig { members, agreement } = QuorumConfig::from_parts(parts, drivers)?;
        let majority = members.len() / 2 + 1;
        let members = Members::open(members, drivers, majority, config::check_member).await?;
        refuse_misfits(&members, &*clock).await?;
        let quorum = match admission::find_quorum(&members, &agreement).await {
            // A new quorum needs all members, and some may still be opening.
            Err(error) if error.is_retryable() => {
                members.all_tried().await;
                admission::find_quorum(&members, &agreement).await?
            }
            found => found?,
        };
        let capabilities = capabilities(&members, agreement.max_lease);
        let spawner = drivers.spawner().clone();
        let lock = QuorumLock::new(Arc::new(Shared {
            digest: agreement.digest(),
            reads: MarkerReads::of(&members),
            members,
            agreement,
            quorum,
            capabilities,
            clock: Arc::clone(&clock),
            leases: Arc::default(),
            admitting: AtomicBool::new(false),
            spawn: Arc::new(move |task| spawner.spawn(task)),
        }));
        Ok(Store::with_clock(
            Arc::new(lock),
            Arc::new(NoRecords),
            clock,
        ))
    }

    async fn migrate(&self, parts: TargetParts, drivers: &Drivers) -> Result<Migrated> {
        let QuorumConfig { members, .. } = QuorumConfig::from_parts(parts, drivers)?;
        let mut all = Migrated::default();
        for member in members {
            let migrated = drivers.migrate(member.target).await?;
            all.version = all.version.max(migrated.version);
            all.applied.extend(migrated.applied);
        }
        Ok(all)
    }
}

/// Refuses a member that was opened and can be none, although the others are a majority: its
/// settings or its tables are wrong, and nobody would notice before another member fails.
async fn refuse_misfits(members: &Members, clock: &dyn Clock) -> Result<()> {
    // A member that hangs delays nobody for long.
    let _ = at_most(clock, LATE, members.all_tried()).await;
    for member in members.all() {
        if let Err(error) = member.begin()
            && error.kind() == ErrorKind::InvalidConfig
        {
            return Err(error);
        }
    }
    Ok(())
}
