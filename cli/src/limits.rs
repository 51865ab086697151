//! The limits that the system sets for this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files as far as the system allows, and returns it. Every connection is
/// an open file, and the usual limit of 1,024 exists for programs that still use `select`.
pub fn raise_open_files() -> u64 {
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

/// A size in KiB from the status of a process, such as the `field` `VmRSS:` (resident memory) or
/// `VmHWM:` (peak of it); `None` if the process has ended.
pub fn memory_kib(process: u32, field: &str) -> Option<u64> {
    let status = std::fs::read(format!("/proc/{process}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
