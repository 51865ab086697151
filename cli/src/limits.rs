//! The limits that the system sets for this process.

use std::{
    io,
    sync::{Mutex, PoisonError},
    thread,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Checks that this number of threads can run at the same time: starts them and ends them again. A
/// runtime that gets only some of its threads panics, and then waits for ever for the others.
///
/// # Errors
/// The error of the system when it refuses one of the threads.
pub(crate) fn check_threads_can_start(number: usize) -> io::Result<()> {
    let hold = Mutex::new(());
    thread::scope(|scope| {
        let held = hold.lock().unwrap_or_else(PoisonError::into_inner);
        // Each thread waits for the mutex that is locked here, so that all of them exist at the
        // same time.
        let started = (0..number).try_for_each(|_| {
            let wait = || drop(hold.lock());
            thread::Builder::new().spawn_scoped(scope, wait).map(drop)
        });
        drop(held);
        started
    })
}

/// Raises the limit of open files as far as the system allows, and returns it. Every connection is
/// an open file, and the usual limit of 1,024 exists for programs that still use `select`.
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

/// A size in KiB from the status of a process, such as the `field` `VmRSS:` (resident memory) or
/// `VmHWM:` (peak of it); `None` if the process has ended.
pub(crate) fn memory_kib(process: u32, field: &str) -> Option<u64> {
    let status = std::fs::read(format!("/proc/{process}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
