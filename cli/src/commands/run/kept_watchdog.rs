//! Keeps a watchdog beside a command: one that ends before the command is replaced.
//!
//! Invariant: a command runs without a watchdog only while the system starts none, and the user is
//! told so. Otherwise a command would run on without a lock if this process were killed later.

use std::{process::ExitStatus, time::Duration};

use distlock::{Clock, Moment};
use rustix::process::Pid;

use crate::{
    group::{WatchEnd, Watchdog},
    held::Held,
    output,
};

/// The shortest time between two starts of a watchdog. It bounds the work when something ends each
/// watchdog at once.
const START_PAUSE: Duration = Duration::from_secs(1);

/// The watchdog of one command.
#[derive(Debug)]
pub(super) struct KeptWatchdog<'a> {
    guard: Held<'a>,
    clock: &'a dyn Clock,
    /// `None` until the command has started.
    group: Option<Pid>,
    /// `None` while no watchdog runs.
    watchdog: Option<Watchdog>,
    next_start: Moment,
    /// Whether the user was told that the command has no watchdog.
    is_announced_missing: bool,
}

impl<'a> KeptWatchdog<'a> {
    /// Starts a watchdog before the command starts, so that no command ever runs without one.
    pub(super) fn start(guard: Held<'a>, clock: &'a dyn Clock) -> Self {
        let mut kept = Self {
            guard,
            clock,
            group: None,
            watchdog: None,
            next_start: clock.now(),
            is_announced_missing: false,
        };
        kept.start_another();
        kept
    }

    /// Makes the watchdog watch the group of the command.
    pub(super) fn watch_group(&mut self, group: Pid) {
        self.group = Some(group);
        if let Some(watchdog) = &mut self.watchdog {
            // An error means that the watchdog has ended. `keep_until_kill` sees that and starts
            // another one.
            let _ = watchdog.watch_group(group);
        }
    }

    /// The process of the watchdog, if one runs.
    pub(super) fn id(&self) -> Option<Pid> {
        self.watchdog.as_ref().and_then(Watchdog::id)
    }

    /// Keeps the watchdog informed, and replaces it when it has ended, until it kills the command.
    ///
    /// Cancel safe.
    pub(super) async fn keep_until_kill(&mut self) {
        let lock = self.guard.watch();
        loop {
            if let Some(watchdog) = &mut self.watchdog {
                match watchdog.keep_informed(&lock).await {
                    WatchEnd::Kills => return,
                    WatchEnd::Died(status) => {
                        self.watchdog = None;
                        self.print_death(status.ok());
                    }
                }
            }
            self.clock
                .sleep(self.next_start.since(self.clock.now()))
                .await;
            self.start_another();
        }
    }

    /// Dismisses the watchdog after the group has ended. Returns whether the watchdog has killed
    /// the command.
    pub(super) async fn dismiss(self) -> bool {
        match self.watchdog {
            Some(watchdog) => watchdog.dismiss().await,
            None => false,
        }
    }

    /// Starts a watchdog, if the system permits that.
    fn start_another(&mut self) {
        self.next_start = self.clock.now() + START_PAUSE;
        let started = Watchdog::start(self.guard).and_then(|mut watchdog| {
            if let Some(group) = self.group {
                watchdog.watch_group(group)?;
            }
            Ok(watchdog)
        });
        let was_missing = self.is_announced_missing;
        self.is_announced_missing = started.is_err();
        match started {
            Ok(watchdog) => {
                self.watchdog = Some(watchdog);
                if was_missing {
                    self.print("the command has a watchdog again");
                }
            }
            Err(error) if !was_missing => self.print(&format!(
                "warning: the command outlives this process if that is killed: no watchdog can \
                 be started, which is tried again every {START_PAUSE:?}: {error}"
            )),
            Err(_) => {}
        }
    }

    /// Tells that the watchdog has ended too early.
    fn print_death(&self, status: Option<ExitStatus>) {
        let how = status.map_or_else(String::new, |status| format!(" ({status})"));
        self.print(&format!(
            "the watchdog of the command has ended{how}: starting another one"
        ));
    }

    /// Prints a message about the command of this lock.
    fn print(&self, message: &str) {
        output::print_message(format_args!("{:?}: {message}", self.guard.name()));
    }
}
