//! A command in a process group of its own: started, signalled, watched to its very end.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | [`ProcessGroup`]: starting, signalling, waiting until nobody of it is left |
//! | `members.rs` | the processes of a group: whether one lives, whether a shell looks after them |
//! | `signals.rs` | [`Signals`]: what is sent to us and meant for the command |
//! | `watchdog.rs` | [`Watchdog`]: ends the group when this process cannot |
//! | `terminal.rs` | [`Terminal`]: who may read the keyboard, and Ctrl-Z |

mod members;
mod signals;
mod terminal;
pub(crate) mod watchdog;

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use distlock::Clock;
use rustix::{
    io::Errno,
    process::{
        Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, test_kill_process_group,
        waitid,
    },
};
use tokio::process::{Child, Command};

pub(crate) use signals::{Arrived, Signals, survive_full_files};
pub(crate) use terminal::{Terminal, stop_ourselves};
pub(crate) use watchdog::Ready;

/// How often the rest of a group is looked for, once its leader has ended. There is nothing to wait on: they are not our
/// children.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A running command with everything it started in its process group.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    leader: Child,
    id: Pid,
}

impl ProcessGroup {
    /// Starts a command as the leader of a new group. It inherits the three standard streams.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        let leader = command
            .stdin(Stdio::inherit())
            .stdout(Stdio::inherit())
            .stderr(Stdio::inherit())
            .process_group(0)
            .spawn()?;
        let id = leader
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the command has no process id"))?;
        Ok(Self { leader, id })
    }

    /// The group's id.
    pub(crate) const fn id(&self) -> Pid {
        self.id
    }

    /// Sends a signal to everybody in the group. A group that is gone is what was wanted.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = kill_process_group(self.id, signal) {
            tracing::debug!(%error, group = self.id.as_raw_nonzero(), ?signal, "signal not sent");
        }
    }

    /// Waits for the command itself.
    ///
    /// Cancel safe.
    pub(crate) async fn leader_ended(&mut self) -> io::Result<ExitStatus> {
        self.leader.wait().await
    }

    /// The signal that has just stopped the command itself, if one has. Each stop is told once.
    pub(crate) fn leader_stopped(&self) -> Option<Signal> {
        // Only stops are asked for, so the exit status stays for `leader_ended`.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.id), options).ok()??;
        status.stopping_signal().and_then(Signal::from_named_raw)
    }

    /// Buries children that are not ours by birth. Those that lose their parent come to the first process of a container,
    /// which may be this one; a shell that ran this tool by `exec` had others. Nobody else can, and each keeps its id till then.
    pub(crate) fn bury_adopted(&self) {
        let leader = self.id.as_raw_nonzero().get();
        members::dead_children(getpid().as_raw_nonzero().get())
            .into_iter()
            .filter(|id| *id != leader)
            .filter_map(Pid::from_raw)
            .for_each(|id| {
                let _ = waitid(
                    WaitId::Pid(id),
                    WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
                );
            });
    }

    /// Waits until nobody of the group is left, once its leader has ended.
    ///
    /// Cancel safe.
    pub(crate) async fn all_ended(&self, clock: &dyn Clock) {
        while self.somebody_lives() {
            clock.sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether anybody of the group can still do something.
    pub(crate) fn somebody_lives(&self) -> bool {
        somebody_lives_in(self.id)
    }
}

/// Whether anybody of a group can still do something.
pub(crate) fn somebody_lives_in(group: Pid) -> bool {
    has_members(test_kill_process_group(group))
        && members::has_living_member(group.as_raw_nonzero().get())
}

/// What the test of a group says: one all of whose members belong to somebody else, as after `sudo`, refuses our signals.
fn has_members(tested: rustix::io::Result<()>) -> bool {
    tested != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_may_not_be_signalled_is_not_gone() {
        assert!(has_members(Ok(())));
        assert!(has_members(Err(Errno::PERM)));
        assert!(!has_members(Err(Errno::SRCH)));
    }
}
