//! The process of the watchdog: it ends the command when its supervisor cannot.
//!
//! Invariant: it judges by the newest deadline that was sent, however late it runs itself. It must
//! never kill a command whose supervisor has already sent a deadline in the future.

use std::{io, thread, time::Duration};

use distlock::{Clock as _, Moment, SystemClock};
use nix::sys::signal::SigSet;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};

use super::{
    is_group_alive,
    members::find_group_with,
    watchdog::{GROUP, KILLS, LOCK, POLL_PAUSE},
};
use crate::exit::{Failure, Outcome, code};

/// The longest time between two checks of the clock. The clock counts while the machine sleeps, but
/// a wait does not.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The longest time for finding the group of a command that was started just now.
const FINDING_LIMIT: Duration = Duration::from_secs(1);

/// Runs the process of the watchdog.
pub(crate) fn execute() -> Outcome {
    // When a supervisor dies while its watchdog is stopped, the kernel sends HUP and then CONT to
    // the watchdog: its process group is orphaned and has a stopped member. A service manager may
    // send TERM to all processes of a service. The watchdog must outlive these signals. It ends
    // with its supervisor.
    SigSet::all().thread_block().map_err(io::Error::from)?;
    let mut told = Told::default();
    let mut pause = Duration::ZERO;
    loop {
        is_readable_within(pause);
        // The clock is read before the pipe. This process may be stopped between any two steps. A
        // deadline that is over by an old clock reading, and is still the newest one in the pipe,
        // was not renewed in time. The other order would kill a command whose renewal arrives
        // during a stop after the pipe was read.
        let now = SystemClock.now();
        let supervisor_lives = told.read_all_that_waits()?;
        if !supervisor_lives {
            if let Some(group) = told.find_group() {
                terminate_until_deadline(group, told.deadline);
                let _ = kill_process_group(group, Signal::KILL);
            }
            return Ok(code::OK);
        }
        let left = told
            .deadline
            .map_or(MAX_PAUSE, |deadline| deadline.since(now));
        if left.is_zero() {
            break;
        }
        pause = left.min(MAX_PAUSE);
    }
    // The supervisor may have been stopped before it sent the group.
    if let Some(group) = told.find_group() {
        // The report comes before the kill, so a supervisor that sees its command killed finds the
        // report. The write fails if the supervisor has just ended, and the command ends anyway.
        let _ = rustix::io::write(io::stdout(), KILLS);
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(code::OK)
}

/// Everything that the supervisor has sent until now.
#[derive(Debug, Default)]
struct Told {
    /// The bytes of a line whose end has not arrived. If the supervisor dies in the middle of a
    /// line, that line does not count.
    rest: Vec<u8>,
    /// The token and the name of the lock.
    lock: Option<String>,
    group: Option<Pid>,
    /// The newest deadline; `None` until the first one arrives.
    deadline: Option<Moment>,
}

impl Told {
    /// Reads what waits in the pipe, without waiting for more. Returns whether the supervisor still
    /// has its end of the pipe. It needs no thread: the system may refuse a thread, and the command
    /// needs the watchdog especially then.
    fn read_all_that_waits(&mut self) -> Outcome<bool> {
        let mut read = [0; 4096];
        while is_readable_within(Duration::ZERO) {
            // This read bypasses the buffer of the standard library, because `poll` does not see
            // bytes in that buffer.
            match rustix::io::read(io::stdin(), &mut read) {
                Ok(length @ 1..) => self.add(&read[..length])?,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Ok(0) | Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Adds bytes from the pipe, which may end in the middle of a line.
    fn add(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<_> = self.rest.drain(..=end).take(end).collect();
            // All lines are UTF-8: `distlock run` sends only lock names and numbers.
            self.note(&String::from_utf8(line).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Notes one line.
    fn note(&mut self, line: &str) -> Outcome<()> {
        let no_number = |_| {
            Failure::usage(
                "wrong arguments of a watchdog: only `distlock run` and `elect` start one",
            )
        };
        if let Some(is) = line.strip_prefix(LOCK) {
            self.lock = Some(is.to_owned());
        } else if let Some(id) = line.strip_prefix(GROUP) {
            self.group = Pid::from_raw(id.parse().map_err(no_number)?);
        } else {
            let micros = Duration::from_micros(line.parse().map_err(no_number)?);
            self.deadline = Some(Moment::from_boot(micros));
        }
        Ok(())
    }

    /// The group of the command: the one that was sent, or else the one that was started for the
    /// lock. Waits a moment for the latter, because the command may have been started just now.
    #[expect(
        clippy::disallowed_methods,
        reason = "a process of its own that waits for others"
    )]
    fn find_group(&self) -> Option<Pid> {
        if self.group.is_some() {
            return self.group;
        }
        let (token, name) = self.lock.as_deref()?.split_once(' ')?;
        let variables = [
            format!("DISTLOCK_TOKEN={token}"),
            format!("DISTLOCK_NAME={name}"),
        ];
        let until = SystemClock.now() + FINDING_LIMIT;
        loop {
            let group = find_group_with(&variables).and_then(Pid::from_raw);
            // A process that is about to become the command does not show its environment yet.
            if group.is_some() || SystemClock.now() >= until {
                return group;
            }
            thread::sleep(POLL_PAUSE);
        }
    }
}

/// Waits at most this long until standard input has something to read, its end included. An
/// interrupted wait counts as nothing to read.
fn is_readable_within(at_most: Duration) -> bool {
    let stdin = io::stdin();
    let mut watched = [PollFd::new(&stdin, PollFlags::IN)];
    let at_most = Timespec::try_from(at_most).ok();
    // Any other error is reported by the read that follows.
    !matches!(
        poll(&mut watched, at_most.as_ref()),
        Ok(0) | Err(Errno::INTR)
    )
}

/// Asks the group to end, and waits until the group is empty or the deadline comes. The deadline is
/// final, because the supervisor has ended and renews no more.
#[expect(
    clippy::disallowed_methods,
    reason = "a process of its own that waits for others"
)]
fn terminate_until_deadline(group: Pid, deadline: Option<Moment>) {
    for signal in [Signal::TERM, Signal::CONT] {
        let _ = kill_process_group(group, signal);
    }
    let deadline = deadline.unwrap_or_else(|| SystemClock.now());
    while SystemClock.now() < deadline && is_group_alive(group) {
        thread::sleep(POLL_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_deadline_counts_in_whatever_pieces_the_lines_arrive() {
        let sent = format!("{LOCK}7 a job\n1000\n{GROUP}42\n2000\n3000\n40");
        for piece in [1, 2, 7, sent.len()] {
            let mut told = Told::default();
            for bytes in sent.as_bytes().chunks(piece) {
                told.add(bytes).unwrap();
            }
            assert_eq!(told.lock.as_deref(), Some("7 a job"));
            assert_eq!(told.group, Pid::from_raw(42));
            let newest = Moment::from_boot(Duration::from_micros(3000));
            // The supervisor died in the middle of the last line.
            assert_eq!(told.deadline, Some(newest), "in pieces of {piece}");
            told.add(b"00\n").unwrap();
            let newest = Moment::from_boot(Duration::from_micros(4000));
            assert_eq!(told.deadline, Some(newest), "in pieces of {piece}");
        }
    }
}
