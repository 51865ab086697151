//! The processor time of a process so far.

use anyhow::{Context as _, Result};
use procfs::process::Process;

use crate::counts::as_f64;

/// The processor time of a process so far, in seconds. The kernel counts it in hundredths.
pub(crate) fn processor_seconds(process: u32) -> Result<f64> {
    let stat = Process::new(process.try_into()?).and_then(|it| it.stat());
    let stat = stat.context("the processor time of a process cannot be told")?;
    Ok(as_f64(stat.utime + stat.stime) / as_f64(procfs::ticks_per_second()))
}
