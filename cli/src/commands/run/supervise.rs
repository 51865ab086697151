//! Watches a command and its lock at the same time, so that the command never outlives the lock.

use std::{process::ExitStatus, time::Duration};

use distlock::{Clock, Guard, Moment};
use rustix::process::Signal;

use crate::{
    exit::Outcome,
    group::{Arrived, ProcessGroup, Signals, Terminal, stop_this_process},
    output::{self, format_seconds},
};

/// The longest wait until a killed group has ended. A killed process runs no code. The wait is that
/// long only for a process that is stuck in the kernel, or for a process of another user, which
/// must not be killed.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// The pause between two checks of the terminal while the command is stopped because it needs the
/// terminal.
const TERMINAL_POLL_PAUSE: Duration = Duration::from_millis(100);

/// The end of a supervised command.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) enum End {
    /// The command ended while the lock was held.
    ByItself {
        status: ExitStatus,
        /// The deadline of the lock, as it was at the end of the command.
        held_until: Moment,
        /// The signal that asked this process to end and was forwarded, if there was one.
        asked_to_end: Option<Signal>,
    },
    /// The lock was lost, or the lease was about to end, and the command was ended for that reason.
    LockLost {
        /// The signal that asked this process to end, if there was one.
        asked_to_end: Option<Signal>,
    },
}

/// The supervision of one command under one lock.
#[derive(Debug)]
pub(super) struct Supervision<'a> {
    guard: &'a Guard,
    clock: &'a dyn Clock,
    kill_after: Duration,
    terminal: Terminal,
    /// The signal that asked this process to end and was forwarded, if there was one.
    asked_to_end: Option<Signal>,
    /// Whether the group got TERM because the lease was about to end.
    warned: bool,
    killed: bool,
}

impl<'a> Supervision<'a> {
    /// Prepares the supervision.
    pub(super) fn new(guard: &'a Guard, clock: &'a dyn Clock, kill_after: Duration) -> Self {
        Self {
            guard,
            clock,
            kill_after,
            terminal: Terminal::new(),
            asked_to_end: None,
            warned: false,
            killed: false,
        }
    }

    /// Watches the command and its group until the group is empty.
    pub(super) async fn watch(
        mut self,
        group: &mut ProcessGroup,
        signals: &mut Signals,
    ) -> Outcome<End> {
        let status = self.watch_leader(group, signals).await;
        self.terminal.take_back();
        self.end_leftovers(group, signals).await;
        // A command that ended by itself at the moment of the loss did not succeed: a part of it
        // may have run without the lock.
        if self.warned || self.killed {
            return Ok(End::LockLost {
                asked_to_end: self.asked_to_end,
            });
        }
        let now = self.clock.now();
        let left = self.guard.remaining();
        if left.is_zero() {
            self.print_loss("before the command ended").await;
            return Ok(End::LockLost {
                asked_to_end: self.asked_to_end,
            });
        }
        Ok(End::ByItself {
            status: status?,
            held_until: now + left,
            asked_to_end: self.asked_to_end,
        })
    }

    /// Watches the leader of the group until it ends.
    async fn watch_leader(
        &mut self,
        group: &mut ProcessGroup,
        signals: &mut Signals,
    ) -> std::io::Result<ExitStatus> {
        loop {
            let alarm = self.next_alarm();
            tokio::select! {
                biased;
                status = group.wait_for_leader() => return status,
                arrived = signals.next() => self.handle_signal(arrived, group).await,
                () = self.wait_for_alarm(alarm) => self.check_lease(group).await,
                () = self.clock.sleep(TERMINAL_POLL_PAUSE), if self.terminal.is_wanted() => {
                    self.terminal.give_if_wanted(group);
                }
            }
        }
    }

    /// Ends the processes that the command left running in its group.
    async fn end_leftovers(&mut self, group: &ProcessGroup, signals: &mut Signals) {
        if !group.is_alive() {
            return;
        }
        if !self.killed {
            tracing::info!("the command ended and left processes in its group: terminating them");
            group.signal(Signal::TERM);
            group.signal(Signal::CONT);
            let grace = self.clock.sleep(self.kill_after);
            tokio::pin!(grace);
            loop {
                let alarm = self.next_alarm();
                tokio::select! {
                    () = group.wait_until_empty(self.clock) => return,
                    () = &mut grace => break,
                    () = self.wait_for_alarm(alarm) => self.check_lease(group).await,
                    arrived = signals.next() => if let Arrived::ForCommand(signal) = arrived {
                        self.forward_signal(signal, group);
                    },
                }
                if self.killed {
                    break;
                }
            }
            group.signal(Signal::KILL);
        }
        tokio::select! {
            () = group.wait_until_empty(self.clock) => {}
            () = self.clock.sleep(KILL_LIMIT) => {
                output::print_message(
                    "warning: a killed process of the command's group does not end",
                );
            }
        }
    }

    /// Handles a signal that arrived.
    async fn handle_signal(&mut self, arrived: Arrived, group: &ProcessGroup) {
        match arrived {
            Arrived::ForCommand(signal) => self.forward_signal(signal, group),
            Arrived::Continued => self.terminal.give_if_wanted(group),
            Arrived::Child => {
                group.reap_adopted();
                if let Some(by) = group.take_stop_of_leader()
                    && self.terminal.handle_stop_of_command(by, group)
                {
                    self.resume(true, group).await;
                }
            }
            Arrived::Pause => {
                // This process cannot renew the lock while it is stopped, so the command is stopped
                // too.
                let had_it = self.terminal.is_given();
                group.signal(Signal::STOP);
                self.terminal.take_back();
                stop_this_process();
                self.resume(had_it, group).await;
            }
        }
    }

    /// Continues the command after a pause, if the lock is still held.
    async fn resume(&mut self, had_terminal: bool, group: &ProcessGroup) {
        self.check_lease(group).await;
        if !self.killed {
            self.terminal.give_back_after_pause(had_terminal, group);
            group.signal(Signal::CONT);
        }
    }

    /// The time until the lease needs attention.
    fn next_alarm(&self) -> Duration {
        let left = self.guard.remaining();
        if self.killed {
            Duration::MAX
        } else if self.warned {
            left
        } else {
            left.saturating_sub(self.kill_after)
        }
    }

    /// Waits until the lock is lost, or for the given time.
    async fn wait_for_alarm(&self, after: Duration) {
        tokio::select! {
            _ = self.guard.lost(), if !self.killed => {}
            () = self.clock.sleep(after) => {}
        }
    }

    /// Kills the group if the lease has ended, or asks it to end if the lease is about to end.
    async fn check_lease(&mut self, group: &ProcessGroup) {
        if self.killed {
            return;
        }
        if !self.guard.is_valid() || self.guard.remaining().is_zero() {
            group.signal(Signal::KILL);
            self.killed = true;
            self.print_loss("while the command ran, and the command was killed")
                .await;
        } else if !self.warned && self.guard.remaining() <= self.kill_after {
            group.signal(Signal::TERM);
            // A stopped process handles no other signal before it is continued.
            group.signal(Signal::CONT);
            self.warned = true;
            output::print_message(format_args!(
                "{:?} could not be renewed and lapses in {}: terminating the command",
                self.guard.name(),
                format_seconds(self.guard.remaining())
            ));
        }
    }

    /// Forwards a signal to the command. A stopped process handles no signal before it is
    /// continued, so a signal that asks to end is followed by CONT. Otherwise only KILL could end a
    /// stopped command, and its lock would be renewed for ever.
    fn forward_signal(&mut self, signal: Signal, group: &ProcessGroup) {
        group.signal(signal);
        if asks_to_end(signal) {
            self.asked_to_end = Some(signal);
            group.signal(Signal::CONT);
        }
    }

    /// Prints that the lock was lost, and the reason.
    async fn print_loss(&self, when: &str) {
        output::print_message(format_args!(
            "{:?} was lost {when}: {}",
            self.guard.name(),
            self.guard.lost().await
        ));
    }
}

/// Whether this signal asks a process to end.
fn asks_to_end(signal: Signal) -> bool {
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].contains(&signal)
}
