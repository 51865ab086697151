//! What the system allows this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Allows as many open files as the administrator lets us, and says how many that are: every connection is one, and the usual
/// default of 1,024 is there for programs that still use `select`.
pub(crate) fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let now = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    now.unwrap_or(u64::MAX)
}

/// A figure in KiB from a process's status, as `VmRSS` (resident now) or `VmHWM` (resident at the most).
pub(crate) fn memory_kib(process: u32, figure: &str) -> Option<u64> {
    let status = std::fs::read(format!("/proc/{process}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find(|line| line.starts_with(figure))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
