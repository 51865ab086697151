//! Sharing the terminal with a command that has a process group of its own.
//!
//! A terminal lets only its foreground group read the keyboard; the system stops a member of
//! another group that tries. So the command gets the foreground when it first asks for it (the
//! system stops it for reading or for changing the terminal), and no sooner: in `distlock run x --
//! make | less` the pager needs the keyboard and the command never does. This module takes the
//! foreground back when the command ends or is paused with Ctrl-Z, so that the shell finds its
//! terminal unchanged.
//!
//! Nobody renews the lease during a pause, so it may expire. The command is paused too, and it is
//! killed instead of continued if the lease has expired.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    thread,
};

use nix::{
    sys::signal::{SigSet, Signal as NixSignal, raise},
    unistd::getpgrp,
};
use rustix::{
    process::{Pid, Signal, kill_current_process_group},
    termios::{tcgetpgrp, tcsetpgrp},
};

use super::{ProcessGroup, members};

/// The controlling terminal, whatever the standard streams are: a pager reads its keys there while
/// its input is a pipe.
const CONTROLLING_TERMINAL: &str = "/dev/tty";

/// The terminal that the command can ask for, if there is one.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// `None` without a controlling terminal, and where the system does not show it; standard input
    /// is used then.
    controlling: Option<File>,
    input: io::Stdin,
    /// Our group. `None` when it belongs to an outer process namespace: the terminal is never ours
    /// to give then.
    ours: Option<Pid>,
    given: bool,
    /// Whether the command is stopped until we are in the foreground and can give it the terminal.
    wanted: bool,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        Self {
            // Opened for both: some systems ask for write access when the foreground changes.
            controlling: File::options()
                .read(true)
                .write(true)
                .open(CONTROLLING_TERMINAL)
                .ok(),
            input: io::stdin(),
            // The other call for this number refuses 0, which the first process of a namespace may
            // have.
            ours: Pid::from_raw(getpgrp().as_raw()),
            given: false,
            wanted: false,
        }
    }

    /// Answers a stop of the command: gives it the terminal if that is why it stopped, or pauses
    /// with it if the user asked for a pause. Returns whether this process was paused too.
    pub(crate) fn handle_stop_of_command(&mut self, by: Signal, group: &ProcessGroup) -> bool {
        if by == Signal::TTIN || by == Signal::TTOU {
            self.wanted = true;
            self.give_if_wanted(group);
            return false;
        }
        if !self.given {
            // Somebody stopped the command alone; we go on holding its lock.
            return false;
        }
        self.take_back();
        // A shell watches our whole group, which includes the other members of a pipeline.
        let _ = kill_current_process_group(stop_signal());
        true
    }

    /// Gives the terminal to a command that is stopped for want of it, if the terminal is ours now.
    pub(crate) fn give_if_wanted(&mut self, group: &ProcessGroup) {
        if self.wanted && (self.given || self.is_in_foreground()) {
            self.wanted = false;
            self.give_to(group.id());
            group.signal(Signal::CONT);
        }
    }

    /// After a pause: gives the terminal back to the command if it had it and we are in the
    /// foreground again.
    pub(crate) fn give_back_after_pause(&mut self, had_it: bool, group: &ProcessGroup) {
        if had_it && self.is_in_foreground() {
            self.give_to(group.id());
        }
    }

    /// Whether the command is stopped until it gets the terminal. The system reports nothing when
    /// it can: a shell's `fg` sends no signal to a job that it believes to be running.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Whether the command has the terminal now.
    pub(crate) const fn is_given(&self) -> bool {
        self.given
    }

    /// Takes the terminal back from the command.
    pub(crate) fn take_back(&mut self) {
        if std::mem::take(&mut self.given)
            && let Some(ours) = self.ours
        {
            self.set_foreground(ours);
        }
    }

    fn is_in_foreground(&self) -> bool {
        self.ours.is_some() && tcgetpgrp(self.descriptor()).ok() == self.ours
    }

    fn give_to(&mut self, group: Pid) {
        self.set_foreground(group);
        self.given = true;
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.controlling {
            Some(terminal) => terminal.as_fd(),
            None => self.input.as_fd(),
        }
    }

    /// Sets the foreground group. The system stops the whole group of a background process that
    /// does this, unless the calling thread blocks SIGTTOU; so a short-lived thread does it.
    fn set_foreground(&self, group: Pid) {
        let change = || {
            let mut blocked = SigSet::empty();
            blocked.add(NixSignal::SIGTTOU);
            blocked.thread_block().map_err(io::Error::from)?;
            tcsetpgrp(self.descriptor(), group).map_err(io::Error::from)
        };
        let changed = thread::scope(|scope| {
            let thread = thread::Builder::new().spawn_scoped(scope, change)?;
            thread
                .join()
                .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        });
        if let Err(error) = changed {
            tracing::debug!(%error, "the terminal did not change hands");
        }
    }
}

/// Stops this process as an uncaught Ctrl-Z would. Returns when it is continued, or at once where
/// nobody could continue it.
pub(crate) fn stop_this_process() {
    // The signal goes to this thread alone, which stops before the call ends.
    let _ = NixSignal::try_from(stop_signal().as_raw()).map(raise);
}

/// The signal that stops us. SIGSTOP cannot be misread or ignored, so it is used where a shell will
/// continue us. In a group that no shell looks after (a session of its own, as under `setsid` or a
/// service manager, or a shell that has gone) nobody would continue us, and the lock would expire.
/// There the system ignores SIGTTOU, as it ignores SIGTSTP, which is caught here. Elsewhere SIGTTOU
/// would ask for the terminal, and some shells give it at once.
fn stop_signal() -> Signal {
    match members::has_outside_parent(getpgrp().as_raw()) {
        Some(true) => Signal::STOP,
        _ => Signal::TTOU,
    }
}
