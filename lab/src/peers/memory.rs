//! Memory: the raw lock table, beside a locker and its guards over it.

use distlock_core::{
    AcquireRequest, Attempt, Clock as _, Error, ErrorKind, HolderLabel, Lease, LockName, OwnerId,
    ReleaseOutcome, Result, SystemClock, Ttl,
};
use distlock_memory::{Memory, Now, Table};
use distlock_report::{Arm, LockerSubject, Options, Report, Subject, Workload, measure};

/// Measures the arms in this process.
pub(crate) async fn run(workload: Workload, options: Options) -> anyhow::Result<Report> {
    options.checked_callers(workload)?;
    let subject = LockerSubject::new(Memory::default().lock());
    let locker = subject.locker().clone();
    locker.ready().await?;
    let mut arms = vec![Arm::new("memory-locker", subject)];
    // The table has no way to wait for a lock, so this arm cannot run workloads that share one
    // name.
    if !workload.shares_one_name() {
        arms.insert(0, Arm::new("memory-table", RawTable::new()?));
    }
    let report = measure(&arms, workload, &options).await?;
    locker.close().await;
    Ok(report)
}

/// The arm with the memory backend's lock table alone: no locker, no guard, no renewal.
#[derive(Debug)]
pub(crate) struct RawTable {
    table: Table,
    holder: HolderLabel,
    ttl: Ttl,
}

impl RawTable {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            table: Table::new(),
            holder: HolderLabel::of_this_process(),
            ttl: Ttl::from_millis(10_000)?,
        })
    }

    /// Takes a free lock, as a new owner.
    pub(crate) fn take_free_lock(&self, name: &str) -> Result<Lease> {
        let request = AcquireRequest::new(
            LockName::new(name)?,
            OwnerId::new(),
            self.ttl,
            self.holder.clone(),
        );
        match self
            .table
            .try_acquire(Now::of(&SystemClock), &request, None)?
        {
            Attempt::Acquired(token) => Ok(Lease::new(request.name, request.owner, Some(token))),
            Attempt::Busy(_) => Err(Error::new(ErrorKind::Timeout, "somebody holds it")),
        }
    }
}

impl Subject for RawTable {
    type Held = Lease;
    type Error = Error;

    async fn acquire(&self, name: &str) -> Result<Lease> {
        self.take_free_lock(name)
    }

    async fn release(&self, lease: Lease) -> Result<()> {
        match self.table.release(SystemClock.now(), &lease) {
            ReleaseOutcome::Released { .. } => Ok(()),
            ReleaseOutcome::NotHeld => Err(Error::new(ErrorKind::NotHeld, "it was not held")),
        }
    }
}
