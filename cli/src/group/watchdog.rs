//! A process that ends the command when its supervisor cannot, because the supervisor was killed or
//! is stopped for longer than the lease.

use std::{io, process::Stdio, thread, time::Duration};

use distlock::{Clock as _, Guard, LockWatch, Moment, SystemClock};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStdin, Command},
    sync::oneshot,
    task::JoinHandle,
};

use super::{is_group_alive, members::find_group_with};
use crate::exit::{Failure, Outcome, code};

/// The first argument of the process. Only this tool passes it.
pub(crate) const NAME: &str = "watchdog";

/// The file of this program, as the system names it.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The messages to the watchdog are lines: `lock` with the token and the name of the lock, `group`
/// with the process group, each deadline as a number, and `done` when the watchdog is dismissed.
const LOCK: &str = "lock ";
const GROUP: &str = "group ";
const DONE: &str = "done";

/// How often the deadline is checked during one lease. Renewals come at a third of the lease.
const CHECKS_PER_LEASE: u32 = 20;
/// The longest time for the watchdog to end after its dismissal, and for finding a group.
const DISMISSAL_LIMIT: Duration = Duration::from_secs(1);
/// The longest time between two checks of the clock. The clock counts while the machine sleeps, but
/// a wait does not.
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two checks whether a group still lives.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// A watchdog that does not know its group yet. It starts before the command does. If the
/// supervisor dies before it has sent the group, the watchdog finds the group by the variables of
/// the lock in its environment.
#[derive(Debug)]
pub(crate) struct StartedWatchdog {
    process: Child,
    stdin: ChildStdin,
}

/// The watchdog of one group, as seen by its supervisor.
#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Child,
    sending: JoinHandle<()>,
    done: oneshot::Sender<()>,
}

impl StartedWatchdog {
    /// Starts a watchdog for the command of this lock.
    pub(crate) async fn start(guard: &Guard) -> io::Result<Self> {
        // This path starts the same program even if its file was replaced meanwhile.
        let mut command = Command::new(OWN_PROGRAM);
        for (variable, _) in std::env::vars_os() {
            // The watchdog needs none of the variables of this tool.
            if variable.to_string_lossy().starts_with("DISTLOCK_") {
                command.env_remove(variable);
            }
        }
        let mut process = command
            .arg0("distlock")
            .arg(NAME)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // In a group of its own, the watchdog does not get the signals that the terminal sends
            // to our group.
            .process_group(0)
            .spawn()?;
        let stdin = process.stdin.take();
        let mut stdin = stdin.ok_or_else(|| io::Error::other("the watchdog has no input"))?;
        let told = format!(
            "{LOCK}{} {}\n{}\n",
            guard.token(),
            guard.name(),
            boot_micros(guard.watch().deadline())
        );
        stdin.write_all(told.as_bytes()).await?;
        Ok(Self { process, stdin })
    }

    /// Makes the watchdog watch `group`. The watchdog kills the group at the deadline of the lock,
    /// unless a later deadline arrives in time. When this process has ended, the watchdog asks the
    /// group to end at once.
    pub(crate) async fn watch_group(mut self, group: Pid, lock: LockWatch) -> io::Result<Watchdog> {
        let line = format!("{GROUP}{}\n", group.as_raw_nonzero());
        self.stdin.write_all(line.as_bytes()).await?;
        let (done, is_done) = oneshot::channel();
        Ok(Watchdog {
            process: self.process,
            sending: tokio::spawn(send_deadlines(self.stdin, lock, is_done)),
            done,
        })
    }
}

impl Watchdog {
    /// Dismisses the watchdog after the group has ended.
    pub(crate) async fn dismiss(mut self) {
        let _ = self.done.send(());
        let _ = self.sending.await;
        tokio::select! {
            _ = self.process.wait() => {}
            () = SystemClock.sleep(DISMISSAL_LIMIT) => drop(self.process.kill().await),
        }
    }
}

/// Sends each new deadline to the watchdog, and its dismissal at the end.
async fn send_deadlines(
    mut watchdog: ChildStdin,
    lock: LockWatch,
    mut is_done: oneshot::Receiver<()>,
) {
    let mut told = None;
    loop {
        let deadline = lock.deadline();
        if told != Some(deadline) {
            // The watchdog has ended, so there is nothing more to send.
            if watchdog
                .write_all(format!("{}\n", boot_micros(deadline)).as_bytes())
                .await
                .is_err()
            {
                return;
            }
            told = Some(deadline);
        }
        let left = deadline.since(SystemClock.now());
        let look = (left / CHECKS_PER_LEASE).max(POLL_PAUSE);
        tokio::select! {
            biased;
            // The other end is also dropped when the supervisor gives up. Then nothing is sent, and
            // the supervisor prints the reason.
            said = &mut is_done => {
                if said.is_ok() {
                    let _ = watchdog.write_all(format!("{DONE}\n").as_bytes()).await;
                }
                return;
            }
            () = SystemClock.sleep(look) => {}
        }
    }
}

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

/// A moment in microseconds since boot, the unit of the messages.
fn boot_micros(moment: Moment) -> u128 {
    moment.since_boot().as_micros()
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
