//! The resident memory of many held locks in the lock table of the memory backend.

use std::{fmt, fs};

use anyhow::{Context as _, ensure};
use distlock_core::Lease;

use crate::peers::memory::RawTable;

/// The resident memory before and after the locks were taken, in bytes.
#[derive(Debug)]
pub(crate) struct Footprint {
    rows: u32,
    before: u64,
    after: u64,
}

/// Takes `rows` locks with names of 32 bytes in one table, and measures the memory.
pub(crate) fn run(rows: u32) -> anyhow::Result<Footprint> {
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
