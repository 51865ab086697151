//! A command in a process group of its own, from its start until the group is empty.

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

use super::{
    members,
    users::{self, Refusing},
};

/// The pause between two checks whether a group whose leader has ended is empty. The system reports
/// nothing about processes that are not our children.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// A running command with all processes that it started in its process group.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    leader: Child,
    id: Pid,
}

/// The members of a group that are left after KILL was sent.
#[derive(Debug)]
pub(crate) enum Rest {
    Nobody,
    /// Processes that have not ended yet. They run no more code of their own.
    Dying,
    /// Only processes that refuse signals.
    Refusing(Refusing),
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

    /// The id of the group.
    pub(crate) const fn id(&self) -> Pid {
        self.id
    }

    /// The user of the leader, if this process may become unable to signal it.
    pub(crate) fn other_user(&self) -> Option<u32> {
        users::other_user_of(self.id)
    }

    /// Sends a signal to all members of the group that accept it. An empty group is no error.
    /// [`ProcessGroup::refusing`] tells who refuses signals.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Err(error) = kill_process_group(self.id, signal) {
            tracing::debug!(%error, group = self.id.as_raw_nonzero(), ?signal, "signal not sent");
        }
    }

    /// Waits for the end of the command itself, the leader of the group.
    ///
    /// Cancel safe.
    pub(crate) async fn wait_for_leader(&mut self) -> io::Result<ExitStatus> {
        self.leader.wait().await
    }

    /// The signal that has just stopped the leader, if there is one. Each stop is returned once.
    pub(crate) fn take_stop_of_leader(&self) -> Option<Signal> {
        // The options ask for stops only, so the exit status stays for `wait_for_leader`.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.id), options).ok()??;
        status.stopping_signal().and_then(Signal::from_named_raw)
    }

    /// The members that refuse the signals of this process. For a signal to a group the system
    /// reports an error only if all members refuse.
    pub(crate) fn refusing(&self) -> Option<Refusing> {
        Refusing::in_group(self.id, self.leader.id().map(|_| self.id))
    }

    /// Whether the leader refuses the signals of this process. The leader must not have ended.
    pub(crate) fn leader_refuses(&self) -> bool {
        self.leader.id().is_some() && users::refuses(self.id.as_raw_nonzero().get())
    }

    /// Kills all members that accept that, and tells who is left.
    pub(crate) fn kill(&self) -> Rest {
        self.signal(Signal::KILL);
        if !self.is_alive() {
            return Rest::Nobody;
        }
        match self.refusing() {
            Some(refusing) if !refusing.others_accept => Rest::Refusing(refusing),
            _ => Rest::Dying,
        }
    }

    /// Reaps the zombies that this process has adopted. A process whose parent died becomes a child
    /// of the first process of a container, which may be this one. A shell that ran this tool by
    /// `exec` leaves its children to it, too. Only this process can reap them, and each keeps its
    /// process id until then. `watchdog` is no adopted child: its owner waits for its end.
    pub(crate) fn reap_adopted(&self, watchdog: Option<Pid>) {
        members::dead_children(getpid().as_raw_nonzero().get())
            .into_iter()
            .filter_map(Pid::from_raw)
            .filter(|id| *id != self.id && Some(*id) != watchdog)
            .for_each(|id| {
                let _ = waitid(
                    WaitId::Pid(id),
                    WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
                );
            });
    }

    /// Waits until the group is empty. The leader must have ended before.
    ///
    /// Cancel safe.
    pub(crate) async fn wait_until_empty(&self, clock: &dyn Clock) {
        while self.is_alive() {
            clock.sleep(POLL_PAUSE).await;
        }
    }

    /// Whether any member of the group still runs.
    pub(crate) fn is_alive(&self) -> bool {
        is_group_alive(self.id)
    }
}

/// Whether any member of a group still runs.
pub(crate) fn is_group_alive(group: Pid) -> bool {
    let tested = test_kill_process_group(group);
    // The system may hide the processes of other users. Then a group that refuses our signals has
    // members, and none of them is shown.
    has_members(tested)
        && members::has_living_member(group.as_raw_nonzero().get(), tested == Err(Errno::PERM))
}

/// Whether the result of sending signal 0 shows that the group has members. A group whose members
/// all belong to another user, as after `sudo`, refuses our signals.
fn has_members(tested: rustix::io::Result<()>) -> bool {
    tested != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_refuses_our_signals_has_members() {
        assert!(has_members(Ok(())));
        assert!(has_members(Err(Errno::PERM)));
        assert!(!has_members(Err(Errno::SRCH)));
    }
}
