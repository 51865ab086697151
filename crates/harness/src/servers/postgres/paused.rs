//! Pausing a server, or one of its processes.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::{Signal, Watchdog, servers::postgres::server::PostgresServer, signal};

/// A server, or one of its processes, that stands still. It goes on when this is dropped.
#[derive(Debug, Default)]
pub struct Paused {
    processes: Vec<u32>,
    watchdogs: Vec<Watchdog>,
}

impl Paused {
    fn stop(&mut self, process: u32) -> Result<()> {
        // One that ended meanwhile needs no stopping.
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

/// The processes that another one has started.
fn children(parent: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse() else {
            continue;
        };
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        // The name before it may hold anything, blanks and brackets included.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        if after_name.split(' ').nth(1) == Some(&parent.to_string()) {
            found.push(process);
        }
    }
    Ok(found)
}

impl PostgresServer {
    /// Stops all of its processes, as if the machine stood still.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pause(&self) -> Result<Paused> {
        let postmaster = self.process.as_ref().context("it runs")?.id();
        let mut paused = Paused::default();
        // First the one that starts others.
        for process in std::iter::once(postmaster).chain(children(postmaster)?) {
            paused.stop(process)?;
        }
        Ok(paused)
    }

    /// Stops one of its processes.
    ///
    /// # Errors
    /// When it has no such process.
    pub fn pause_one(&self, process: u32) -> Result<Paused> {
        let postmaster = self.process.as_ref().context("it runs")?.id();
        ensure!(
            children(postmaster)?.contains(&process),
            "{process} is none of its processes"
        );
        let mut paused = Paused::default();
        paused.stop(process)?;
        Ok(paused)
    }
}
