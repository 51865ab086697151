//! Pauses a server, or one of its processes.
//!
//! No process must stay paused. A process continues when the value is dropped. If the test is
//! killed before that, a watchdog kills the process.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::{Signal, Watchdog, servers::postgres::server::PostgresServer, signal};

/// The paused processes of a server: all of them or one. Dropping the value lets the processes
/// continue.
#[derive(Debug, Default)]
pub struct Paused {
    processes: Vec<u32>,
    watchdogs: Vec<Watchdog>,
}

impl Paused {
    /// Pauses one process. A watchdog kills the process if the test dies.
    fn pause_process(&mut self, process: u32) -> Result<()> {
        // The signal fails if the process has ended. Then there is nothing to pause.
        if signal(process, Signal::STOP).is_ok() {
            self.watchdogs.push(Watchdog::over_process(process)?);
            self.processes.push(process);
        }
        Ok(())
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for watchdog in self.watchdogs.drain(..) {
            watchdog.dismiss();
        }
        for process in &self.processes {
            let _ = signal(*process, Signal::CONT);
        }
    }
}

/// Returns the ids of the child processes of a process.
fn child_processes(parent: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse() else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The fields follow the process's name in brackets, which may contain blanks and brackets.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        if after_name.split(' ').nth(1) == Some(&parent.to_string()) {
            found.push(process);
        }
    }
    Ok(found)
}

impl PostgresServer {
    /// Pauses all processes of the server, like a machine that stops.
    ///
    /// # Errors
    /// Returns an error if the server does not run.
    pub fn pause(&self) -> Result<Paused> {
        let postmaster = self.process.as_ref().context("it runs")?.id();
        let mut paused = Paused::default();
        // The process that starts all others is paused first, so that no new process starts
        // meanwhile.
        for process in std::iter::once(postmaster).chain(child_processes(postmaster)?) {
            paused.pause_process(process)?;
        }
        Ok(paused)
    }

    /// Pauses one process of the server.
    ///
    /// # Errors
    /// Returns an error if the server has no such process.
    pub fn pause_one(&self, process: u32) -> Result<Paused> {
        let postmaster = self.process.as_ref().context("it runs")?.id();
        ensure!(
            child_processes(postmaster)?.contains(&process),
            "{process} is none of its processes"
        );
        let mut paused = Paused::default();
        paused.pause_process(process)?;
        Ok(paused)
    }
}
