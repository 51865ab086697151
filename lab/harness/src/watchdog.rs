//! Kills a process when the test ends, even if the test process is killed and no destructor runs.

use std::{
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};

/// Kills a process or a process group when this value is dropped or this process has ended.
///
/// A small shell waits for the end of a pipe. Only this process has the writing end of the pipe. So
/// the shell also kills the target when this process is killed with SIGKILL and no destructor runs.
/// The kernel's parent-death signal does not suffice. That signal needs `unsafe` code between fork
/// and exec. The kernel also sends that signal too early: at the end of the *thread* that started
/// the child.
#[derive(Debug)]
pub struct Watchdog {
    shell: Child,
    target: String,
}

impl Watchdog {
    /// Watches one process.
    ///
    /// # Errors
    /// Returns an error if there is no `sh`.
    pub fn over_process(pid: u32) -> Result<Self> {
        Self::start(pid.to_string())
    }

    /// Watches a whole process group.
    ///
    /// # Errors
    /// Returns an error if there is no `sh`.
    pub fn over_group(leader: u32) -> Result<Self> {
        Self::start(format!("-{leader}"))
    }

    fn start(target: String) -> Result<Self> {
        let shell = Command::new("sh")
            .args(["-c", r#"read _; kill -s KILL -- "$1""#, "watchdog", &target])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The shell is in its own group, so that a kill of the test's group does not kill the
            // watchdog.
            .process_group(0)
            .spawn()
            .context("start the watchdog shell")?;
        Ok(Self { shell, target })
    }

    /// Returns the target in the form of an argument of `kill`: a process id, or a negative number
    /// for a group.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Ends the watch and kills nothing. The caller must call this function after the target has
    /// ended and was reaped, because the id of the target may then belong to another process.
    pub fn dismiss(mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The shell kills the target when the pipe is closed, and then ends. After `dismiss` the
        // shell has ended already.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, time::Duration};

    use super::*;
    use crate::{Signal, eventually, signal};

    #[test]
    fn a_dropped_watchdog_kills_a_stopped_group() {
        let mut sleeper = Command::new("sleep")
            .arg("60")
            .process_group(0)
            .spawn()
            .unwrap();
        signal(sleeper.id(), Signal::STOP).unwrap();
        drop(Watchdog::over_group(sleeper.id()).unwrap());
        let mut status = None;
        eventually("killed", Duration::from_secs(5), || {
            status = sleeper.try_wait().unwrap();
            status.is_some()
        })
        .unwrap();
        assert_eq!(status.unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn a_dismissed_watchdog_kills_nothing() {
        let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
        Watchdog::over_process(sleeper.id()).unwrap().dismiss();
        assert_eq!(sleeper.try_wait().unwrap(), None);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
