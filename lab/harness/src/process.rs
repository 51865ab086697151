//! Child processes that never outlive their test.
//!
//! Each child leads its own process group, and a watchdog kills that group even if the test itself
//! is killed.

use std::{
    env,
    ffi::OsStr,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::process::{Pid, kill_process, kill_process_group};

pub use rustix::process::Signal;

use crate::{
    eventually,
    output::{Lines, Reader},
    watchdog::Watchdog,
};

/// Time-out for the rest of a process's output after the process has ended. On a machine with idle
/// time, the rest arrives within a moment.
const OUTPUT_LIMIT: Duration = Duration::from_secs(10);

/// A child process in its own process group. Its output is collected as lines.
///
/// The whole group is killed when this value is dropped. The group is also killed when the test
/// process itself is killed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    watchdog: Option<Watchdog>,
    lines: Lines,
    readers: Vec<Reader>,
    program: String,
}

impl Process {
    /// Starts a child. Its standard output and error are collected. Its standard input is empty.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let what = command.get_program().to_string_lossy().into_owned();
        Self::start(command.process_group(0), what)
    }

    /// Starts a server in its own session, like a service manager. Linux divides processor time
    /// among sessions. In the session of its client, a server would get no more processor time than
    /// one thread of the client.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`Process::spawn`].
    pub fn serve(program: impl AsRef<OsStr>, arguments: &[&str]) -> Result<Self> {
        Self::serve_with_command(Command::new, program.as_ref(), arguments)
    }

    /// Works like [`Process::serve`]. `command` makes a command from a program's name, and may let
    /// the program run as another user.
    pub(crate) fn serve_with_command(
        command: impl FnOnce(&'static str) -> Command,
        program: &OsStr,
        arguments: &[&str],
    ) -> Result<Self> {
        let what = program.to_string_lossy().into_owned();
        ensure!(
            program_exists(program),
            "start {what}: there is no such program"
        );
        // `setsid` becomes the server itself, so the process keeps its id and leads its group.
        Self::start(command("setsid").arg(program).args(arguments), what)
    }

    fn start(command: &mut Command, program: String) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let watchdog = Watchdog::over_group(child.id());
        let lines = Lines::default();
        let out = child.stdout.take().map(|out| Reader::start(out, &lines));
        let err = child.stderr.take().map(|err| Reader::start(err, &lines));
        let mut process = Self {
            child,
            watchdog: None,
            lines,
            readers: out.into_iter().chain(err).collect(),
            program,
        };
        // The error of the watchdog is returned only after `process` exists, so that the drop of
        // `process` kills the child.
        process.watchdog = Some(watchdog?);
        Ok(process)
    }

    /// Returns the process id, which is also the id of the group.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the child alone.
    ///
    /// # Errors
    /// Returns an error if the child has ended.
    pub fn signal(&self, which: Signal) -> Result<()> {
        signal(self.id(), which).with_context(|| format!("signal {}", self.program))
    }

    /// Sends a signal to the whole group.
    ///
    /// # Errors
    /// Returns an error if the group is empty.
    pub fn signal_group(&self, which: Signal) -> Result<()> {
        kill_process_group(to_pid(self.id())?, which)
            .with_context(|| format!("signal the group of {}", self.program))
    }

    /// Tells whether the child still runs.
    ///
    /// # Errors
    /// Returns an error if the system does not report the state of the child.
    pub fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Waits until the child has ended, and until [`Process::output`] contains the child's whole
    /// output.
    ///
    /// # Errors
    /// Returns an error if the child still runs after `within`. The output is part of the message.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let mut status = None;
        let ended = eventually(&format!("{} ends", self.program), within, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        match (ended, status) {
            (Ok(()), Some(status)) => {
                let read = || self.readers.iter().all(Reader::is_up_to_date);
                // The error is ignored, because another process with the same streams may write for
                // ever.
                let _ = eventually("the output is read", OUTPUT_LIMIT, read);
                Ok(status)
            }
            (Err(error), _) => Err(error.context(self.output())),
            (Ok(()), None) => bail!("{} has no exit status", self.program),
        }
    }

    /// Returns all output until now, both streams mixed in the order of arrival.
    #[must_use]
    pub fn output(&self) -> String {
        self.lines.lock().join("\n")
    }

    /// Waits for a line of output and returns it.
    ///
    /// # Errors
    /// Returns an error if no such line came within `within`. The output is part of the message.
    pub fn wait_for_line(
        &self,
        within: Duration,
        matches: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let mut found = None;
        let seen = eventually(&format!("{} says it", self.program), within, || {
            found = self.lines.lock().iter().find(|line| matches(line)).cloned();
            found.is_some()
        });
        match seen {
            Ok(()) => found.ok_or_else(|| anyhow!("a line was seen and is gone")),
            Err(error) => Err(error.context(self.output())),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The group is killed before the child is reaped. Until then the child's id, which is the
        // id of the group, cannot belong to another process.
        if let Ok(group) = to_pid(self.id()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(watchdog) = self.watchdog.take() {
            watchdog.dismiss();
        }
    }
}

/// Tells whether a program of this name exists on the path.
fn program_exists(program: &OsStr) -> bool {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return path.is_file();
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&folders).any(|folder| folder.join(path).is_file())
}

/// Sends a signal to a process.
///
/// # Errors
/// Returns an error if there is no such process.
pub fn signal(process: u32, which: Signal) -> Result<()> {
    kill_process(to_pid(process)?, which).with_context(|| format!("signal process {process}"))
}

/// Returns the path of the `distlock` command-line tool, as built for the running tests.
///
/// # Errors
/// Returns an error if the tool was not built.
pub fn distlock_binary() -> Result<PathBuf> {
    // Cargo builds the tool for the tests of the tool's own package, and names its path in a
    // variable. Tests of other packages find the tool in a folder above their own binary.
    for variable in ["CARGO_BIN_EXE_distlock", "NEXTEST_BIN_EXE_distlock"] {
        if let Some(path) = env::var_os(variable) {
            return Ok(path.into());
        }
    }
    let test = env::current_exe().context("where this test is")?;
    test.ancestors()
        .skip(1)
        .take(3)
        .map(|folder| folder.join("distlock"))
        .find(|path| path.is_file())
        .ok_or_else(|| missing_binary_error(&test))
}

/// Returns the error for a tool that was not built. `test` is the path of the running test.
fn missing_binary_error(test: &Path) -> anyhow::Error {
    anyhow!(
        "no distlock binary near {}: build it with `cargo build -p distlock-cli`",
        test.display()
    )
}

fn to_pid(process: u32) -> Result<Pid> {
    i32::try_from(process)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| anyhow!("{process} is not a process id"))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, thread};

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn spawn_shell(script: &str) -> Process {
        Process::spawn(Command::new("sh").args(["-c", script])).unwrap()
    }

    /// Tells whether a process runs or is stopped. A zombie counts as ended.
    fn is_alive(process: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{process}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn the_output_and_the_exit_code_of_a_child_are_returned() {
        let mut child = spawn_shell("echo ready; echo trouble >&2; exit 3");
        assert_eq!(child.wait(SOON).unwrap().code(), Some(3));
        child.wait_for_line(SOON, |line| line == "ready").unwrap();
        child.wait_for_line(SOON, |line| line == "trouble").unwrap();
        assert!(!child.is_running().unwrap());
    }

    #[test]
    fn the_output_of_a_child_is_complete_when_it_has_ended() {
        let mut child = spawn_shell("seq 100000");
        child.wait(SOON).unwrap();
        assert!(child.output().ends_with("\n100000"));
    }

    #[test]
    fn the_output_is_complete_although_another_process_has_the_streams() {
        let mut child = spawn_shell("sleep 600 & echo $!; seq 100000");
        child.wait(SOON).unwrap();
        let read = || child.readers.iter().all(Reader::is_up_to_date);
        eventually("the output is read", SOON, read).unwrap();
        let output = child.output();
        assert!(output.ends_with("\n100000"));
        let (grandchild, _) = output.split_once('\n').unwrap();
        assert!(is_alive(grandchild));
    }

    #[test]
    fn a_child_that_runs_too_long_is_an_error_with_its_output() {
        let mut child = spawn_shell("echo here; sleep 60");
        child.wait_for_line(SOON, |line| line == "here").unwrap();
        let error = child.wait(Duration::from_millis(50)).unwrap_err();
        assert!(format!("{error:#}").contains("here"), "{error:#}");
    }

    #[test]
    fn a_server_leads_a_session_of_its_own_and_ends_with_its_children() {
        let server = Process::serve("sh", &["-c", "sleep 60 & echo $!; wait"]).unwrap();
        let child = server
            .wait_for_line(SOON, |line| line.parse::<u32>().is_ok())
            .unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let [_, _, group, session] = fields.split(' ').take(4).collect::<Vec<_>>()[..] else {
            panic!("{stat}")
        };
        let leader = server.id().to_string();
        assert_eq!((group, session), (&*leader, &*leader));
        drop(server);
        eventually("its child is gone", SOON, || !is_alive(&child)).unwrap();
    }

    #[test]
    fn a_server_that_is_not_installed_is_an_error() {
        for program in ["no-such-server", "/no/such-server"] {
            let error = Process::serve(program, &[]).unwrap_err();
            let said = format!("{error:#}");
            assert!(said.contains(program), "{said}");
        }
    }

    #[test]
    fn a_signal_ends_the_child() {
        let mut child = spawn_shell("echo ready; sleep 60");
        child.wait_for_line(SOON, |line| line == "ready").unwrap();
        child.signal(Signal::TERM).unwrap();
        assert_eq!(
            child.wait(SOON).unwrap().signal(),
            Some(Signal::TERM.as_raw())
        );
    }

    #[test]
    fn dropping_a_process_kills_its_children_too() {
        let child = spawn_shell("sleep 60 & echo $!; wait");
        let grandchild = child
            .wait_for_line(SOON, |line| line.parse::<u32>().is_ok())
            .unwrap();
        assert!(is_alive(&grandchild));
        drop(child);
        eventually("grandchild gone", SOON, || !is_alive(&grandchild)).unwrap();
    }

    /// The test process is killed with SIGKILL, so no destructor runs. For that, this test starts
    /// its own binary once more and kills the new process.
    #[test]
    fn children_die_with_a_killed_test() {
        const ROLE: &str = "HARNESS_TEST_VICTIM";
        if env::var_os(ROLE).is_some() {
            let child = spawn_shell("sleep 60");
            child.signal(Signal::STOP).unwrap();
            // The outer test reads the id from this file, because the test runner would capture
            // printed output.
            std::fs::write(env::var_os(ROLE).unwrap(), child.id().to_string()).unwrap();
            thread::sleep(Duration::from_secs(60));
        }
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("id");
        let mut victim = Command::new(env::current_exe().unwrap())
            .args(["--exact", "process::tests::children_die_with_a_killed_test"])
            .env(ROLE, &note)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let id = || std::fs::read_to_string(&note).unwrap_or_default();
        eventually("victim has a child", SOON, || !id().is_empty()).unwrap();
        assert!(is_alive(&id()));
        victim.kill().unwrap();
        victim.wait().unwrap();
        eventually("orphan gone", SOON, || !is_alive(&id())).unwrap();
    }
}
