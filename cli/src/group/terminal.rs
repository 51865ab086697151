//! Shares the terminal with a command that has a process group of its own.
//!
//! A terminal lets only its foreground group read the keyboard; the system stops a member of
//! another group that tries. So the command gets the foreground when it first needs the terminal:
//! the system stops it for reading or for changing the terminal. The command does not get the
//! foreground sooner: in `distlock run x -- make | less` the pager needs the keyboard and the
//! command never does. This module takes the foreground back when the command ends or is paused
//! with Ctrl-Z, so that the shell finds its terminal unchanged.
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

/// The controlling terminal. The standard streams may be something else: a pager reads keys from
/// the terminal while its input is a pipe.
const CONTROLLING_TERMINAL: &str = "/dev/tty";

/// The terminal that the command can get, if there is one.
#[derive(Debug)]
pub(crate) struct Terminal {
    /// `None` without a controlling terminal, and where the system does not show it. Standard input
    /// is used then.
    controlling: Option<File>,
    input: io::Stdin,
    /// The process group of this process. `None` when it belongs to an outer process namespace:
    /// then the terminal is never given to the command.
    ours: Option<Pid>,
    given: bool,
    /// Whether the command is stopped until this process is in the foreground and can give it the
    /// terminal.
    wanted: bool,
}

impl Terminal {
    /// Opens the controlling terminal, if there is one.
    pub(crate) fn new() -> Self {
        Self {
            // The file is opened for reading and writing: some systems ask for write access when
            // the foreground changes.
            controlling: File::options()
                .read(true)
                .write(true)
                .open(CONTROLLING_TERMINAL)
                .ok(),
            input: io::stdin(),
            // `nix` is used here because the call of `rustix` for the group refuses 0, which the
            // first process of a namespace may have.
            ours: Pid::from_raw(getpgrp().as_raw()),
            given: false,
            wanted: false,
        }
    }

    /// Handles a stop of the command. If the command stopped because it needs the terminal, gives
    /// it the terminal. If the user asked for a pause, pauses this process too. Returns whether
    /// this process was paused.
    pub(crate) fn handle_stop_of_command(&mut self, by: Signal, group: &ProcessGroup) -> bool {
        if by == Signal::TTIN || by == Signal::TTOU {
            self.wanted = true;
            self.give_if_wanted(group);
            return false;
        }
        if !self.given {
            // Another program stopped the command alone. This process still runs and holds the
            // lock.
            return false;
        }
        self.take_back();
        // The whole group is stopped, because a shell watches all members, such as the other parts
        // of a pipeline.
        let _ = kill_current_process_group(stop_signal());
        true
    }

    /// Gives the terminal to a command that is stopped because it needs the terminal, if this
    /// process has it now.
    pub(crate) fn give_if_wanted(&mut self, group: &ProcessGroup) {
        if self.wanted && (self.given || self.is_in_foreground()) {
            self.wanted = false;
            self.give_to(group.id());
            group.signal(Signal::CONT);
        }
    }

    /// Gives the terminal back to the command after a pause, if the command had it before and this
    /// process is in the foreground again.
    pub(crate) fn give_back_after_pause(&mut self, had_it: bool, group: &ProcessGroup) {
        if had_it && self.is_in_foreground() {
            self.give_to(group.id());
        }
    }

    /// Whether the command is stopped until it gets the terminal. The caller must poll this method:
    /// `fg` of a shell sends no signal to a job that the shell believes to be running.
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

    /// Whether the group of this process is in the foreground of the terminal.
    fn is_in_foreground(&self) -> bool {
        self.ours.is_some() && tcgetpgrp(self.descriptor()).ok() == self.ours
    }

    /// Puts the group of the command into the foreground.
    fn give_to(&mut self, group: Pid) {
        self.set_foreground(group);
        self.given = true;
    }

    /// The terminal, as the system calls need it.
    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.controlling {
            Some(terminal) => terminal.as_fd(),
            None => self.input.as_fd(),
        }
    }

    /// Sets the foreground group. The system would stop the whole group of a background process
    /// that does this, unless the calling thread blocks SIGTTOU. So a thread that lives only for
    /// this call blocks the signal.
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
            tracing::debug!(%error, "the terminal was not given to another process group");
        }
    }
}

/// Stops this process as Ctrl-Z would if it were not caught. Returns when the process is continued,
/// or at once where no other process could continue it.
pub(crate) fn stop_this_process() {
    // The signal is sent to this thread, which stops before the call returns.
    let _ = NixSignal::try_from(stop_signal().as_raw()).map(raise);
}

/// The signal with which this process stops itself. SIGSTOP cannot be caught or ignored, so it is
/// used where a shell will continue this process. Without such a shell (in a session of its own, as
/// under `setsid` or a service manager, or after the shell has ended) the process would stay
/// stopped, and the lock would expire. There SIGTTOU is used, which the system ignores in such a
/// group, as it would ignore an uncaught SIGTSTP. With a shell SIGTTOU would ask for the terminal,
/// and some shells give it at once.
fn stop_signal() -> Signal {
    match members::has_outside_parent(getpgrp().as_raw()) {
        Some(true) => Signal::STOP,
        _ => Signal::TTOU,
    }
}
