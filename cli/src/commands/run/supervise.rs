//! Watches a command and its lock at the same time, so that the command never outlives the lock.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};

use distlock::{Clock, Moment};
use rustix::process::Signal;

use super::kept_watchdog::KeptWatchdog;
use crate::{
    exit::Outcome,
    group::{
        Arrived, ProcessGroup, Refusing, Rest, Signals, Terminal, own_user, stop_this_process,
    },
    held::Held,
    output::{self, format_seconds},
};

/// The longest wait until a killed group has ended. A killed process runs no code. The wait is that
/// long only for a process that is stuck in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// The pauses between two checks for the rest of a killed group: while its processes die, and while
/// only processes are left that refuse to be killed and may run for long.
const REST_PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));

/// The pause between two checks of the terminal while the command is stopped because it needs the
/// terminal.
const TERMINAL_POLL_PAUSE: Duration = Duration::from_millis(100);

/// The time between the start of the command and the look at its user. The kernel tells that a
/// program was started before it changes the user of a set-user-ID program, and a shell takes a
/// moment to replace itself by one.
const USER_SETTLES: Duration = Duration::from_millis(250);

/// The consequence when a process refuses to be killed although the lock is lost.
const MAY_STILL_RUN: &str = "it may still run, without the lock";

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
    /// The lock was lost, or the lease was about to end, and the command was ended for that reason;
    /// or the watchdog killed it. A process that refuses signals may still run.
    LockLost {
        /// The signal that asked this process to end, if there was one.
        asked_to_end: Option<Signal>,
    },
}

/// The supervision of one command under one lock.
#[derive(Debug)]
pub(super) struct Supervision<'a> {
    guard: Held<'a>,
    clock: &'a dyn Clock,
    kill_after: Duration,
    terminal: Terminal,
    /// The moment of the look at the command's user; `None` = that was done.
    user_look: Option<Moment>,
    /// The signal that asked this process to end and was forwarded, if there was one.
    asked_to_end: Option<Signal>,
    /// Whether the group got TERM because the lease was about to end.
    warned: bool,
    /// Whether the group got KILL, because the lease had ended or because the watchdog judged so.
    killed: bool,
    /// Whether the lease has ended, the group got KILL for that reason and the user was told.
    lapsed: bool,
    /// Whether the user was told of processes that refuse to be killed.
    announced_refusal: bool,
}

impl<'a> Supervision<'a> {
    /// Prepares the supervision.
    pub(super) fn new(guard: Held<'a>, clock: &'a dyn Clock, kill_after: Duration) -> Self {
        Self {
            guard,
            clock,
            kill_after,
            terminal: Terminal::new(),
            user_look: Some(clock.now() + USER_SETTLES),
            asked_to_end: None,
            warned: false,
            killed: false,
            lapsed: false,
            announced_refusal: false,
        }
    }

    /// Watches the command and its group until the group is empty. Processes that refuse signals
    /// are waited for only as long as the lock is held.
    pub(super) async fn watch(
        mut self,
        group: &mut ProcessGroup,
        mut watchdog: KeptWatchdog<'_>,
        signals: &mut Signals,
    ) -> Outcome<End> {
        let status = self.watch_leader(group, &mut watchdog, signals).await;
        self.terminal.take_back();
        // A leader that ended by itself and left nothing behind was not killed. On a starved host
        // the watchdog may hear of a renewal late, and kill a command that has ended.
        let killed_by = Some(Signal::KILL.as_raw());
        let ended_alone = !group.is_alive()
            && matches!(&status, Ok(Some(status)) if status.signal() != killed_by);
        self.end_leftovers(group, &mut watchdog, signals).await;
        // The end of a killed command may be seen before the report of the watchdog that killed
        // it. The group is empty, so nothing is signalled here: its id may belong to a stranger.
        let was_killed = watchdog.dismiss().await && !(ended_alone && self.guard.is_valid());
        if was_killed && !self.killed {
            self.killed = true;
            if self.guard.is_valid() {
                self.print_kill_by_watchdog();
            } else {
                self.print_loss("while the command ran, and the watchdog killed the command")
                    .await;
            }
        }
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
        // Without a status the leader refused to be killed, which is answered above.
        let Some(status) = status? else {
            return Ok(End::LockLost {
                asked_to_end: self.asked_to_end,
            });
        };
        Ok(End::ByItself {
            status,
            held_until: now + left,
            asked_to_end: self.asked_to_end,
        })
    }

    /// Watches the leader of the group until it ends. Returns `None` if the lock is lost and the
    /// leader refuses to be killed.
    async fn watch_leader(
        &mut self,
        group: &mut ProcessGroup,
        watchdog: &mut KeptWatchdog<'_>,
        signals: &mut Signals,
    ) -> std::io::Result<Option<ExitStatus>> {
        loop {
            if self.lapsed && group.leader_refuses() {
                return Ok(None);
            }
            let alarm = self.next_alarm();
            let until_look = |at: Moment| at.since(self.clock.now());
            let user_look = self.user_look.map_or(Duration::ZERO, until_look);
            tokio::select! {
                biased;
                status = group.wait_for_leader() => return status.map(Some),
                arrived = signals.next() => self.handle_signal(arrived, group, watchdog).await,
                () = self.wait_for_alarm(alarm) => self.check_lease(group).await,
                () = watchdog.keep_until_kill(), if !self.killed => {
                    self.handle_kill_by_watchdog(group).await;
                }
                () = self.clock.sleep(TERMINAL_POLL_PAUSE), if self.terminal.is_wanted() => {
                    self.terminal.give_if_wanted(group);
                }
                () = self.clock.sleep(user_look), if self.user_look.is_some() => {
                    self.user_look = None;
                    self.warn_of_other_user(group);
                }
            }
        }
    }

    /// Warns of a command that changed its user, and may refuse the signals of this process.
    fn warn_of_other_user(&self, group: &ProcessGroup) {
        let Some(user) = group.other_user() else {
            return;
        };
        output::print_message(format_args!(
            "warning: the command (process {}) runs as uid {user}, and this process (uid {}) may \
             be unable to end it when {:?} is lost: run distlock itself as that user, as in sudo \
             distlock run .. -- CMD",
            group.id().as_raw_nonzero(),
            own_user(),
            self.guard.name(),
        ));
    }

    /// Ends the processes that the command left running in its group.
    async fn end_leftovers(
        &mut self,
        group: &ProcessGroup,
        watchdog: &mut KeptWatchdog<'_>,
        signals: &mut Signals,
    ) {
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
                    () = watchdog.keep_until_kill(), if !self.killed => {
                        self.handle_kill_by_watchdog(group).await;
                    }
                    arrived = signals.next() => if let Arrived::ForCommand(signal) = arrived {
                        self.forward_signal(signal, group);
                    },
                }
                if self.killed {
                    break;
                }
            }
        }
        self.kill_leftovers(group, watchdog, signals).await;
    }

    /// Kills the rest of the group. A process that refuses to be killed uses what the lock
    /// protects, so the lock is kept until that process ends, or until the lock is lost.
    async fn kill_leftovers(
        &mut self,
        group: &ProcessGroup,
        watchdog: &mut KeptWatchdog<'_>,
        signals: &mut Signals,
    ) {
        let limit = self.clock.now() + KILL_LIMIT;
        loop {
            let pause = match group.kill() {
                Rest::Nobody => return,
                Rest::Dying if self.clock.now() < limit => REST_PAUSES.0,
                Rest::Dying => {
                    output::print_message(
                        "warning: a killed process of the command's group does not end",
                    );
                    return;
                }
                Rest::Refusing(refusing) if self.lapsed => {
                    // The loss was printed with their names, unless the system hid them behind
                    // members that it showed.
                    if !self.announced_refusal {
                        self.print_refusal(&refusing, MAY_STILL_RUN);
                    }
                    return;
                }
                Rest::Refusing(refusing) => {
                    self.announce_refusal(&refusing);
                    REST_PAUSES.1
                }
            };
            let alarm = self.next_alarm();
            tokio::select! {
                () = self.clock.sleep(pause) => {}
                () = self.wait_for_alarm(alarm) => self.check_lease(group).await,
                () = watchdog.keep_until_kill(), if !self.killed => {
                    self.handle_kill_by_watchdog(group).await;
                }
                arrived = signals.next() => if let Arrived::ForCommand(signal) = arrived {
                    self.forward_signal(signal, group);
                },
            }
        }
    }

    /// Handles a signal that arrived.
    async fn handle_signal(
        &mut self,
        arrived: Arrived,
        group: &ProcessGroup,
        watchdog: &KeptWatchdog<'_>,
    ) {
        match arrived {
            Arrived::ForCommand(signal) => self.forward_signal(signal, group),
            Arrived::Continued => self.terminal.give_if_wanted(group),
            Arrived::Child => {
                group.reap_adopted(watchdog.id());
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
                if let Some(refusing) = group.refusing() {
                    // A part of the command would go on, and nobody would renew its lock.
                    group.signal(Signal::CONT);
                    self.print_refusal(&refusing, "the command is not paused");
                    return;
                }
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
        if self.lapsed {
            Duration::MAX
        } else if self.warned || self.killed {
            left
        } else {
            left.saturating_sub(self.kill_after)
        }
    }

    /// Waits until the lock is lost, or for the given time.
    async fn wait_for_alarm(&self, after: Duration) {
        tokio::select! {
            _ = self.guard.lost(), if !self.lapsed => {}
            () = self.clock.sleep(after) => {}
        }
    }

    /// Kills the group if the lease has ended, or asks it to end if the lease is about to end.
    async fn check_lease(&mut self, group: &ProcessGroup) {
        if self.lapsed {
            return;
        }
        if !self.guard.is_valid() || self.guard.remaining().is_zero() {
            group.signal(Signal::KILL);
            self.killed = true;
            self.lapsed = true;
            match group.refusing() {
                Some(refusing) => {
                    self.print_loss("while the command ran").await;
                    self.print_refusal(&refusing, MAY_STILL_RUN);
                    self.announced_refusal = true;
                }
                None => {
                    self.print_loss("while the command ran, and the command was killed")
                        .await;
                }
            }
        } else if !self.warned && !self.killed && self.guard.remaining() <= self.kill_after {
            group.signal(Signal::TERM);
            // A stopped process handles no other signal before it is continued.
            group.signal(Signal::CONT);
            self.warned = true;
            output::print_message(format_args!(
                "{:?} could not be renewed and expires in {}: terminating the command",
                self.guard.name(),
                format_seconds(self.guard.remaining())
            ));
            if let Some(refusing) = group.refusing() {
                self.print_refusal(&refusing, "it is not terminated");
            }
        }
    }

    /// Handles that the watchdog kills the group. The watchdog may be stopped before it does, so
    /// the group is killed here too.
    async fn handle_kill_by_watchdog(&mut self, group: &ProcessGroup) {
        self.check_lease(group).await;
        if self.lapsed {
            return;
        }
        group.signal(Signal::KILL);
        self.killed = true;
        self.print_kill_by_watchdog();
        if let Some(refusing) = group.refusing() {
            self.announce_refusal(&refusing);
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
            if let Some(refusing) = group.refusing() {
                self.print_refusal(&refusing, "it did not get the signal");
            }
        }
    }

    /// Prints that the watchdog killed the command of a held lock.
    fn print_kill_by_watchdog(&self) {
        output::print_message(format_args!(
            "{:?} is held, but the watchdog killed the command: no renewal had reached the \
             watchdog before the deadline that it knew, as on a host that is short of processor \
             time or was paused",
            self.guard.name()
        ));
    }

    /// Tells the user once that the lock is kept for processes that refuse to be killed.
    fn announce_refusal(&mut self, refusing: &Refusing) {
        if !std::mem::replace(&mut self.announced_refusal, true) {
            self.print_refusal(refusing, "the lock is kept until that has ended");
        }
    }

    /// Prints that processes of the command refuse signals, and the consequence.
    fn print_refusal(&self, refusing: &Refusing, consequence: &str) {
        output::print_message(format_args!(
            "{:?}: this user (uid {}) may not signal {refusing} of the command: {consequence}",
            self.guard.name(),
            own_user()
        ));
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
