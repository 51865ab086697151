//! Memory: the raw lock table beside a locker and its guards, and the memory of many held locks.

use std::{fmt, fs};

use anyhow::{Context as _, ensure};
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
            // Of many rows whose memory is measured, none may expire meanwhile.
            ttl: Ttl::from_millis(600_000)?,
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

/// The resident memory before and after the locks were taken, in bytes.
#[derive(Debug)]
pub(crate) struct Footprint {
    rows: u32,
    before: u64,
    after: u64,
}

/// Takes `rows` locks with names of 32 bytes in one table, and measures the memory.
pub(crate) fn run_rows(rows: u32) -> anyhow::Result<Footprint> {
    let table = RawTable::new()?;
    let before = resident_bytes()?;
    let mut last: Option<Lease> = None;
    for number in 0..rows {
        let name = format!("tenant-0042:account:{number:012}");
        ensure!(name.len() == 32, "the names are 32 bytes long");
        last = Some(table.take_free_lock(&name)?);
    }
    let after = resident_bytes()?;
    // The table refuses a request for the last lock. So the locks were still held when the memory
    // was measured.
    if let Some(lease) = last {
        ensure!(
            table.take_free_lock(lease.name.as_str()).is_err(),
            "the rows are still held when memory is read"
        );
    }
    Ok(Footprint {
        rows,
        before,
        after,
    })
}

impl fmt::Display for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grown = self.after.saturating_sub(self.before);
        writeln!(
            f,
            "{} held rows: {} MB resident, {} MB more than before, {} bytes a row",
            self.rows,
            self.after / 1_000_000,
            grown / 1_000_000,
            grown / u64::from(self.rows.max(1))
        )
    }
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("resident memory: /proc")?;
    let kilobytes: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .context("resident memory: no VmRSS in /proc/self/status")?
        .trim()
        .parse()?;
    Ok(kilobytes * 1024)
}
