//! The process of the watchdog: it ends the command when its supervisor cannot.

use std::{io, thread, time::Duration};

use distlock::{Clock as _, Moment, SystemClock};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};

use super::{
    is_group_alive,
    members::find_group_with,
    watchdog::{DISMISSAL_LIMIT, DONE, GROUP, LOCK, POLL_PAUSE},
};
use crate::exit::{Failure, Outcome, code};

/// The longest time between two checks of the clock. The clock counts while the machine sleeps, but
/// a wait does not.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Runs the process of the watchdog.
pub(crate) fn execute() -> Outcome {
    let mut input = Input::default();
    let no_number =
        |_| Failure::usage("a watchdog is started by distlock run, and told in numbers");
    let (mut lock, mut group): (Option<String>, Option<Pid>) = (None, None);
    // This is `None` until the first deadline arrives.
    let mut deadline: Option<Moment> = None;
    loop {
        let left = deadline.map_or(MAX_PAUSE, |deadline| deadline.since(SystemClock.now()));
        if left.is_zero() {
            break;
        }
        match input.wait_for_event(left.min(MAX_PAUSE)) {
            InputEvent::Line(line) if line == DONE => return Ok(code::OK),
            InputEvent::Line(line) => {
                if let Some(is) = line.strip_prefix(LOCK) {
                    lock = Some(is.to_owned());
                } else if let Some(id) = line.strip_prefix(GROUP) {
                    group = Pid::from_raw(id.parse().map_err(no_number)?);
                } else {
                    let micros = Duration::from_micros(line.parse().map_err(no_number)?);
                    deadline = Some(Moment::from_boot(micros));
                }
            }
            InputEvent::Nothing => {}
            InputEvent::End => {
                group = group.or_else(|| find_group(lock.as_deref()));
                if let Some(group) = group {
                    terminate_until_deadline(group, deadline);
                }
                break;
            }
        }
    }
    // The supervisor may have been stopped before it sent the group.
    if let Some(group) = group.or_else(|| find_group(lock.as_deref())) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(code::OK)
}

/// Reads standard input line by line, with a time limit. It needs no thread: the system may refuse
/// a thread, and the command needs the watchdog especially then.
#[derive(Debug, Default)]
struct Input {
    /// The bytes of a line whose end has not arrived.
    rest: Vec<u8>,
}

/// The result of a wait for input: a line, nothing in time, or the end of the input.
#[derive(Debug)]
enum InputEvent {
    Line(String),
    Nothing,
    End,
}

impl Input {
    /// Waits at most this long for a line.
    fn wait_for_event(&mut self, at_most: Duration) -> InputEvent {
        if let Some(line) = self.take_line() {
            return InputEvent::Line(line);
        }
        let stdin = io::stdin();
        let mut watched = [PollFd::new(&stdin, PollFlags::IN)];
        let at_most = Timespec::try_from(at_most).ok();
        match poll(&mut watched, at_most.as_ref()) {
            Ok(1..) => {}
            Ok(0) | Err(Errno::INTR) => return InputEvent::Nothing,
            Err(_) => return InputEvent::End,
        }
        let mut read = [0; 4096];
        // This read bypasses the buffer of the standard library, because `poll` does not see bytes
        // in that buffer.
        match rustix::io::read(&stdin, &mut read) {
            Ok(length @ 1..) => self.rest.extend_from_slice(&read[..length]),
            Err(Errno::INTR | Errno::AGAIN) => return InputEvent::Nothing,
            Ok(0) | Err(_) => return InputEvent::End,
        }
        self.take_line()
            .map_or(InputEvent::Nothing, InputEvent::Line)
    }

    /// Removes the first whole line from the bytes that were read.
    fn take_line(&mut self) -> Option<String> {
        let end = self.rest.iter().position(|byte| *byte == b'\n')?;
        let line = self.rest.drain(..=end).take(end).collect();
        // All lines are UTF-8: `distlock run` sends only lock names and numbers.
        Some(String::from_utf8(line).unwrap_or_default())
    }
}

/// The group of the command that was started for a lock. Waits a moment for it, because the command
/// may have been started just now.
#[expect(
    clippy::disallowed_methods,
    reason = "a process of its own that waits for others"
)]
fn find_group(lock: Option<&str>) -> Option<Pid> {
    let (token, name) = lock?.split_once(' ')?;
    let variables = [
        format!("DISTLOCK_TOKEN={token}"),
        format!("DISTLOCK_NAME={name}"),
    ];
    let until = SystemClock.now() + DISMISSAL_LIMIT;
    loop {
        let group = find_group_with(&variables).and_then(Pid::from_raw);
        // A process that is about to become the command does not show its environment yet.
        if group.is_some() || SystemClock.now() >= until {
            return group;
        }
        thread::sleep(POLL_PAUSE);
    }
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
