//! What the system allows this process.

use std::{
    io,
    sync::{Mutex, PoisonError},
    thread,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Starts so many threads and ends them again. A runtime of many threads panics when it gets only
/// some of them, and then waits for ever for the others.
///
/// # Errors
/// What the system says when there are fewer.
pub(crate) fn can_start_threads(number: usize) -> io::Result<()> {
    let hold = Mutex::new(());
    thread::scope(|scope| {
        let held = hold.lock().unwrap_or_else(PoisonError::into_inner);
        // They are all there at the same time, because each waits for what is held here.
        let started = (0..number).try_for_each(|_| {
            let wait = || drop(hold.lock());
            thread::Builder::new().spawn_scoped(scope, wait).map(drop)
        });
        drop(held);
        started
    })
}

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
