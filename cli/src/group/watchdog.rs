//! The supervisor's side of the watchdog: a process that ends the command when its supervisor
//! cannot, because the supervisor was killed or is stopped for longer than the lease.
//!
//! Invariant: the watchdog hears every new deadline soon, and its supervisor hears when the
//! watchdog kills the command and when it has ended.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use distlock::{Clock as _, Moment, SystemClock};
use rustix::process::Pid;
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::held::{Held, HeldWatch};

/// The first argument of the process. Only this tool passes it.
pub(crate) const NAME: &str = "watchdog";

/// The file of this program, as the system names it.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// The messages to the watchdog are lines: `lock` with the token and the name of the lock, `group`
/// with the process group, and each deadline as a number.
pub(super) const LOCK: &str = "lock ";
pub(super) const GROUP: &str = "group ";

/// The only message of the watchdog: the deadline has passed, and it kills the group now.
pub(super) const KILLS: &[u8] = b"k";

/// How often the deadline is checked during one lease. Renewals come at a third of the lease.
const CHECKS_PER_LEASE: u32 = 20;
/// The pause between two checks whether a group still lives.
pub(super) const POLL_PAUSE: Duration = Duration::from_millis(20);

/// A running watchdog, as seen by its supervisor. If the supervisor drops it without a dismissal,
/// the watchdog ends the command, as after a death of the supervisor.
#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Child,
    messages: ChildStdin,
    reports: ChildStdout,
    /// The newest deadline that was sent.
    told: Option<Moment>,
    /// Whether the watchdog reported that it kills the group.
    kills: bool,
}

/// The reason why a watchdog watches no longer.
#[derive(Debug)]
pub(crate) enum WatchEnd {
    /// It kills the command, because it knows of no deadline in the future.
    Kills,
    /// It has ended, and the command has no watchdog.
    Died(io::Result<ExitStatus>),
}

impl Watchdog {
    /// Starts a watchdog for the command of this lock. It starts before the command does, so it
    /// does not know the group yet. If the supervisor dies before it has sent the group, the
    /// watchdog finds the group by the variables of the lock in its environment.
    pub(crate) fn start(guard: Held<'_>) -> io::Result<Self> {
        // This path starts the same program even if its file was replaced meanwhile.
        let mut command = Command::new(OWN_PROGRAM);
        for (variable, _) in std::env::vars_os() {
            // The watchdog needs none of the variables of this tool.
            if variable.to_string_lossy().starts_with("DISTLOCK_") {
                command.env_remove(variable);
            }
        }
        let mut process = command
            .arg0("distlock")
            .arg(NAME)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // In a group of its own, the watchdog does not get the signals that the terminal sends
            // to our group.
            .process_group(0)
            .spawn()?;
        let (Some(messages), Some(reports)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::other("the watchdog has no pipes"));
        };
        let mut watchdog = Self {
            process,
            messages,
            reports,
            told: None,
            kills: false,
        };
        watchdog.send(&format!("{LOCK}{} {}", guard.token(), guard.name()))?;
        watchdog.tell_deadline(guard.watch().deadline())?;
        Ok(watchdog)
    }

    /// The id of the process; `None` after its end was seen.
    pub(crate) fn id(&self) -> Option<Pid> {
        let id = i32::try_from(self.process.id()?).ok()?;
        Pid::from_raw(id)
    }

    /// Makes the watchdog watch `group`. The watchdog kills the group at the deadline of the lock,
    /// unless a later deadline arrives in time. When this process has ended, the watchdog asks the
    /// group to end at once.
    pub(crate) fn watch_group(&mut self, group: Pid) -> io::Result<()> {
        self.send(&format!("{GROUP}{}", group.as_raw_nonzero()))
    }

    /// Tells the watchdog each new deadline, until it watches no longer.
    ///
    /// Cancel safe: a message is sent as a whole or not at all.
    pub(crate) async fn keep_informed(&mut self, lock: &HeldWatch) -> WatchEnd {
        loop {
            let deadline = lock.deadline();
            if self.told != Some(deadline) && self.tell_deadline(deadline).is_err() {
                // The watchdog has ended, and its end is read below. Or the pipe is full, because
                // the watchdog has been stopped during thousands of renewals. It would judge by a
                // deadline of long ago when it is continued, so another one must take its place.
                let _ = self.process.start_kill();
            }
            let left = deadline.since(SystemClock.now());
            let look = (left / CHECKS_PER_LEASE).max(POLL_PAUSE);
            tokio::select! {
                biased;
                () = self.read_reports() => {}
                () = SystemClock.sleep(look) => continue,
            }
            return if self.kills {
                WatchEnd::Kills
            } else {
                WatchEnd::Died(self.process.wait().await)
            };
        }
    }

    /// Ends the watchdog after the group has ended. Returns whether the watchdog has killed the
    /// group.
    pub(crate) async fn dismiss(mut self) -> bool {
        // Killed, because a watchdog that starts slowly or was stopped would end late, and must not
        // kill a group that gets the same id later.
        let _ = self.process.kill().await;
        // The report of a kill comes before the kill. So it waits in the pipe by now.
        self.read_reports().await;
        self.kills
    }

    /// Waits until the watchdog reports that it kills the group, or has ended.
    ///
    /// Cancel safe.
    async fn read_reports(&mut self) {
        let mut byte = [0; KILLS.len()];
        if !self.kills {
            self.kills = matches!(self.reports.read(&mut byte).await, Ok(1..));
        }
    }

    /// Sends a deadline, in microseconds since boot.
    fn tell_deadline(&mut self, deadline: Moment) -> io::Result<()> {
        self.send(&deadline.since_boot().as_micros().to_string())?;
        self.told = Some(deadline);
        Ok(())
    }

    /// Sends a message without waiting. The system takes a message of up to 4096 bytes as a whole,
    /// or refuses it when the pipe has no room. The longest one contains a lock name.
    fn send(&self, message: &str) -> io::Result<()> {
        rustix::io::write(&self.messages, format!("{message}\n").as_bytes())?;
        Ok(())
    }
}
