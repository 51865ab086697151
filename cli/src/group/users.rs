//! The users that processes run as, and the processes that this one may not signal.
//!
//! A command that changes its user, as `sudo` and other set-user-ID programs do, may refuse the
//! signals of this process. This process cannot end such a command, and must never say that it did.

use std::{fmt, fs};

use rustix::{
    io::Errno,
    process::{Pid, test_kill_process, test_kill_process_group},
};

use super::{
    is_group_alive,
    members::{Member, living_members},
};

/// The bit of `CAP_KILL` in a set of capabilities. A process that has it may signal the processes
/// of all users. A process of root lacks it in a container that drops it.
const CAP_KILL: u64 = 1 << 5;

/// The living processes of a group that refuse the signals of this process.
#[derive(Debug)]
pub(crate) struct Refusing {
    group: Pid,
    /// This is empty if the system hides the processes of other users, as with the mount option
    /// `hidepid` of `/proc`.
    members: Vec<Member>,
    /// Whether the group has other living processes, which accept signals.
    pub(super) others_accept: bool,
}

impl Refusing {
    /// Finds the processes of a group that refuse signals; `None` if there are none. `leader` is
    /// the leader of the group, unless it was reaped: after that its id may belong to a stranger.
    pub(super) fn in_group(group: Pid, leader: Option<Pid>) -> Option<Self> {
        // The system also checks permissions for a signal to a zombie.
        if !is_group_alive(group) {
            return None;
        }
        let mut members = living_members(raw(group));
        let mut is_hidden_group = false;
        if members.is_empty() {
            match leader.map(raw) {
                Some(id) => members.push(Member {
                    id,
                    name: String::new(),
                }),
                None => is_hidden_group = test_kill_process_group(group) == Err(Errno::PERM),
            }
        }
        let all = members.len();
        members.retain(|it| refuses(it.id));
        (is_hidden_group || !members.is_empty()).then_some(Self {
            group,
            others_accept: members.len() < all,
            members,
        })
    }
}

impl fmt::Display for Refusing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let describe = |member: &Member| {
            let user = Users::of(member.id).map_or_else(
                || "of another user".to_owned(),
                |users| format!("{}, uid {}", member.name, users.effective),
            );
            format!("process {} ({user})", member.id)
        };
        let members: Vec<_> = self.members.iter().map(describe).collect();
        if members.is_empty() {
            return write!(
                f,
                "process group {} (of another user)",
                self.group.as_raw_nonzero()
            );
        }
        f.write_str(&members.join(" and "))
    }
}

/// The user of a process, if this process may become unable to signal it: a set-user-ID program has
/// given it another user than this process has.
pub(super) fn other_user_of(process: Pid) -> Option<u32> {
    let theirs = Users::of(raw(process))?;
    let ours = Users::of(raw(rustix::process::getpid()))?;
    (theirs != ours && !may_signal_all()).then_some(theirs.effective)
}

/// The id of the user that this process runs as.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a process refuses the signals of this process. A process that has ended does not.
pub(super) fn refuses(process: i32) -> bool {
    Pid::from_raw(process).is_some_and(|it| test_kill_process(it) == Err(Errno::PERM))
}

/// Whether this process may signal the processes of all users.
fn may_signal_all() -> bool {
    let status = fs::read("/proc/self/status").unwrap_or_default();
    let effective = field(&String::from_utf8_lossy(&status), "CapEff:")
        .and_then(|set| u64::from_str_radix(&set, 16).ok());
    effective.is_some_and(|set| set & CAP_KILL != 0)
}

/// The ids of the users of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Users {
    real: u32,
    effective: u32,
    saved: u32,
}

impl Users {
    /// Reads the users of a process; `None` if the system does not show them.
    fn of(process: i32) -> Option<Self> {
        let status = fs::read(format!("/proc/{process}/status")).ok()?;
        // The kernel cuts names off after some bytes, perhaps in the middle of a character.
        Self::parse(&String::from_utf8_lossy(&status))
    }

    /// Parses the text of `/proc/ID/status`.
    fn parse(status: &str) -> Option<Self> {
        let ids = field(status, "Uid:")?;
        let mut ids = ids.split_whitespace().map(str::parse);
        let mut next = || ids.next()?.ok();
        Some(Self {
            real: next()?,
            effective: next()?,
            saved: next()?,
        })
    }
}

/// A field in the text of `/proc/ID/status`.
fn field(status: &str, name: &str) -> Option<String> {
    let found = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(found.trim().to_owned())
}

/// The number of a process or a group.
const fn raw(id: Pid) -> i32 {
    id.as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_of_a_process_are_parsed() {
        let users = Users::parse("Name:\ta\nUid:\t1000\t0\t7\t0\nGid:\t1\t1\t1\t1\n").unwrap();
        assert_eq!((users.real, users.effective, users.saved), (1000, 0, 7));
        assert_eq!(Users::parse("Uid:\t1000\n"), None);
        assert_eq!(Users::parse(""), None);
    }

    #[test]
    fn this_process_accepts_its_own_signals() {
        let own = rustix::process::getpid();
        assert!(!refuses(raw(own)));
        assert_eq!(other_user_of(own), None);
        assert_eq!(Users::of(raw(own)).unwrap().effective, own_user());
    }
}
