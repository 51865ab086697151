//! Starts and supervises a command under a lock. A watchdog ends the command if the supervisor
//! dies.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{
        ffi::OsStrExt as _,
        process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{self, ExitStatus},
    time::Duration,
};

use distlock::{Clock, FencingToken, HolderLabel, LockName, backend::excerpt};
use rustix::fs::{Access, access};
use tokio::process::Command;

use super::{
    kept_watchdog::KeptWatchdog,
    supervise::{End, Supervision},
};
use crate::{
    exit::{Failure, Outcome, code, code_of_signal},
    group::{ProcessGroup, Signals, watchdog::OWN_PROGRAM},
    held::Held,
    output, stderr, systemd,
};

/// The folders that `execvp` searches without the variable `PATH`: those of musl, which include the
/// ones of glibc.
const PATH_WHEN_UNSET: &str = "/usr/local/bin:/bin:/usr/bin";

/// The first argument of a process that becomes the command. Only this tool passes it.
pub(crate) const WITH_OWN_PID: &str = "with-own-pid";

/// `ENOEXEC`: the file may be executed, but it is no program.
const NO_EXECUTABLE_FORMAT: i32 = rustix::io::Errno::NOEXEC.raw_os_error();

/// The command that runs under a lock.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Supervised<'a> {
    pub(in crate::commands) command: &'a [OsString],
    pub(in crate::commands) holder: &'a HolderLabel,
    /// The time between TERM and KILL when the lock is lost. `None` = 5 s, but at most a quarter of
    /// the lease.
    pub(in crate::commands) kill_after: Option<Duration>,
}

impl Supervised<'_> {
    /// Runs the command to its end.
    pub(in crate::commands) async fn run(
        self,
        guard: impl Into<Held<'_>>,
        signals: &mut Signals,
        clock: &dyn Clock,
    ) -> Outcome<End> {
        self.start(guard.into(), clock)?.watch(signals).await
    }

    /// Starts the command. After a failure no part of the command has run.
    pub(in crate::commands) fn start<'g>(
        self,
        guard: Held<'g>,
        clock: &'g dyn Clock,
    ) -> Outcome<Running<'g>> {
        let kill_after = self.kill_after_under(guard);
        // Earlier messages are written first, because the command writes to the same terminal.
        stderr::catch_up();
        // This process may have been stopped since the lock was granted, and the lease may have
        // expired.
        if let Err(error) = guard.check() {
            let lost = Failure::from(error);
            return Err(lost.map_message(|why| format!("the command was not started: {why}")));
        }
        let mut watchdog = KeptWatchdog::start(guard, clock);
        let group = self.spawn(guard)?;
        watchdog.watch_group(group.id());
        Ok(Running {
            supervision: Supervision::new(guard, clock, kill_after),
            group,
            watchdog,
        })
    }

    /// Starts the command in a group of its own.
    fn spawn(&self, guard: Held<'_>) -> Outcome<ProcessGroup> {
        let with_lock = |words: &[OsString]| {
            let mut command = command_with_lock(words, guard.name(), guard.token(), self.holder);
            let indices = guard.indices();
            if !indices.is_empty() {
                let indices: Vec<_> = indices.iter().map(u32::to_string).collect();
                command.env("DISTLOCK_INDICES", indices.join(","));
            }
            command
        };
        let addressed = systemd::variables_of_this_process();
        if !addressed.is_empty() {
            // The id of a process is known only after its start. So a process of this program puts
            // its id into the variables, and then becomes the command.
            let mut words = vec![OWN_PROGRAM.into(), WITH_OWN_PID.into()];
            words.extend(addressed.into_iter().map(OsString::from));
            words.push("--".into());
            words.extend_from_slice(self.command);
            let spawned = find_program(&self.command[0])
                .and_then(|_| ProcessGroup::spawn(with_lock(&words).arg0("distlock")));
            return spawned.map_err(|error| start_failure(&self.command[0], &error));
        }
        let spawned = match ProcessGroup::spawn(&mut with_lock(self.command)) {
            // Like a shell, this runs a script without an interpreter line by `sh`.
            Err(error) if error.raw_os_error() == Some(NO_EXECUTABLE_FORMAT) => {
                let script = find_program(&self.command[0]);
                let script = script.map_or_else(|_| self.command[0].clone(), Into::into);
                let words = [OsString::from("/bin/sh"), script];
                let words: Vec<_> = words.iter().chain(&self.command[1..]).cloned().collect();
                ProcessGroup::spawn(&mut with_lock(words.as_slice()))
            }
            started => started,
        };
        spawned.map_err(|error| start_failure(&self.command[0], &error))
    }

    /// The time between TERM and KILL under the granted lease. The lease can be shorter than the
    /// requested TTL, for example when the lease depends on a session.
    fn kill_after_under(&self, guard: Held<'_>) -> Duration {
        let lease = guard.ttl().duration();
        match self.kill_after {
            None => Duration::from_secs(5).min(lease / 4),
            Some(given) if given > lease / 2 => {
                output::print_message(format_args!(
                    "warning: --kill-after {given:?} is cut to {:?}: this store's leases last \
                    {lease:?}",
                    lease / 2
                ));
                lease / 2
            }
            Some(given) => given,
        }
    }
}

/// A command that was started, with its watchdog.
#[derive(Debug)]
pub(in crate::commands) struct Running<'a> {
    supervision: Supervision<'a>,
    group: ProcessGroup,
    watchdog: KeptWatchdog<'a>,
}

impl Running<'_> {
    /// Watches the command to its end.
    pub(in crate::commands) async fn watch(mut self, signals: &mut Signals) -> Outcome<End> {
        self.supervision
            .watch(&mut self.group, self.watchdog, signals)
            .await
    }
}

/// Builds the command with the name, token and holder of the lock in its environment. Variables of
/// this tool are removed, because the URL of the backend may hold a password.
pub(in crate::commands) fn command_with_lock(
    words: &[OsString],
    name: &LockName,
    token: FencingToken,
    holder: &HolderLabel,
) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("DISTLOCK_") {
            command.env_remove(variable);
        }
    }
    command
        .env("DISTLOCK_NAME", name.as_str())
        .env("DISTLOCK_TOKEN", token.to_string())
        .env("DISTLOCK_HOLDER", holder.as_str());
    command
}

/// Puts the id of this process into variables, and becomes the command that follows them and `--`.
/// Returns only if that fails.
pub(crate) fn become_command(words: impl Iterator<Item = OsString>) -> Outcome {
    let words: Vec<_> = words.collect();
    let mut parts = words.splitn(2, |word| word == "--");
    let variables = parts.next().unwrap_or_default();
    let Some([program, args @ ..]) = parts.next() else {
        return Err(Failure::usage(
            "wrong arguments: only `distlock run` and `elect` start this command",
        ));
    };
    let mut command = process::Command::new(program);
    // Newer versions of systemd name the process in a second way too.
    command.args(args).env_remove("LISTEN_PIDFDID");
    for variable in variables {
        command.env(variable, process::id().to_string());
    }
    Err(start_failure(program, &command.exec()))
}

/// Finds the file of a program as `execvp` does: a name with a slash is a path, and another name is
/// the first file on `PATH` that may be executed.
///
/// # Errors
/// The error of `execvp` for a program that is missing or may not be executed.
pub(super) fn find_program(program: &OsStr) -> io::Result<PathBuf> {
    if program.is_empty() || program.as_bytes().contains(&b'/') {
        return check_executable(Path::new(program)).map(|()| program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH_WHEN_UNSET.into());
    let mut failure = io::ErrorKind::NotFound.into();
    for folder in std::env::split_paths(&path) {
        let file = folder.join(program);
        match check_executable(&file) {
            Ok(()) => return Ok(file),
            // The search goes on, and this error is told only if no folder has the program.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => failure = error,
            Err(_) => {}
        }
    }
    Err(failure)
}

/// Checks that a file may be executed. What the file contains shows only when it is executed.
fn check_executable(file: &Path) -> io::Result<()> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(access(file, Access::EXEC_OK)?)
}

/// Checks that the time between TERM and KILL is at most half of the TTL. A renewal comes at a
/// third of the TTL, when just over half of the lease is left. With a longer time, TERM would be
/// due before each renewal.
pub(in crate::commands) fn check_kill_after(
    kill_after: Option<Duration>,
    ttl: Duration,
) -> Outcome<()> {
    match kill_after {
        Some(given) if given > ttl / 2 => Err(Failure::usage(format!(
            "--kill-after {given:?} is more than half of the TTL ({ttl:?}): every renewal would \
            come too late"
        ))),
        _ => Ok(()),
    }
}

/// The failure when a program cannot be started, with the code of a shell.
pub(in crate::commands) fn start_failure(program: &OsString, error: &io::Error) -> Failure {
    let is_there = find_program(program).is_ok();
    let program = excerpt(&program.to_string_lossy());
    let code = match error.kind() {
        io::ErrorKind::NotFound if is_there => {
            let says = format!(
                "cannot run {program}: its interpreter, which its first line names, or its loader \
                 does not exist"
            );
            return Failure::new(code::NOT_FOUND, says);
        }
        io::ErrorKind::NotFound => code::NOT_FOUND,
        // The system refuses any further process.
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
            let says = format!(
                "cannot start a process for {program}: raise the limit of processes (ulimit -u, \
                 pids.max) or of memory: {error}"
            );
            return Failure::new(code::UNAVAILABLE, says);
        }
        _ => code::NOT_EXECUTABLE,
    };
    Failure::new(code, format!("cannot run {program}: {error}"))
}

/// The exit code for the end of a command.
pub(in crate::commands) fn code_of_status(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(code::FAILED),
        (None, Some(signal)) => code_of_signal(signal),
        (None, None) => code::BUG,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock::{Locker, ManualClock, Renew, SystemClock};
    use distlock_memory::Memory;

    use super::*;

    #[tokio::test]
    async fn a_command_is_not_started_under_an_expired_lock() {
        let clock = Arc::new(ManualClock::new());
        let memory = Memory::new(Arc::clone(&clock) as _);
        let locker = Locker::builder(memory.lock()).clock(Arc::clone(&clock) as _);
        let locker = locker.build();
        let guard = locker.lock("job").renew(Renew::Manual).acquire();
        let guard = guard.await.unwrap();
        // The clock advances as if this process had been stopped here.
        clock.advance(guard.ttl().duration());
        let mut signals = Signals::catch().unwrap();
        let supervised = Supervised {
            command: &["true".into()],
            holder: &HolderLabel::of_this_process(),
            kill_after: None,
        };
        let outcome = supervised.run(&guard, &mut signals, &SystemClock).await;
        let failure = outcome.expect_err("the command was started");
        assert_eq!(failure.code, code::LOST, "{failure}");
    }
}
