//! A process that ends the command when its supervisor cannot, because the supervisor was killed,
//! or has stood still for longer than the lease.

use std::{
    io::{self, BufRead as _},
    process::Stdio,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use distlock::{Clock as _, Guard, LockWatch, Moment, SystemClock};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStdin, Command},
    sync::oneshot,
    task::JoinHandle,
};

use super::{members::group_with, somebody_lives_in};
use crate::exit::{Failure, Outcome, code};

/// The first argument of the process, which nobody gives by hand.
pub(crate) const NAME: &str = "watchdog";

/// As the system knows it.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// What it is told: the lock's token and name, the group, each deadline as a number, and that it is
/// not needed any more.
const LOCK: &str = "lock ";
const GROUP: &str = "group ";
const DONE: &str = "done";

/// How often the lease is looked at. Renewals come at a third of it.
const LOOKS_PER_LEASE: u32 = 20;
/// How long it may take to end when it is not needed any more.
const FAREWELL: Duration = Duration::from_secs(1);
/// Longest time for which it does not look at the clock, which also counts while the machine
/// sleeps.
const NAP: Duration = Duration::from_secs(1);
/// How often the rest of a group is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A watchdog that has no group to watch over yet. It is started before the command is. Should this
/// process be gone before it has said which group that is, the watchdog finds it by the lock in its
/// environment.
#[derive(Debug)]
pub(crate) struct Ready {
    process: Child,
    stdin: ChildStdin,
}

/// The watchdog over one group, seen from its supervisor.
#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Child,
    telling: JoinHandle<()>,
    done: oneshot::Sender<()>,
}

impl Ready {
    /// For the command of this lock.
    pub(crate) async fn start(guard: &Guard) -> io::Result<Self> {
        // This very program, also when its file was replaced meanwhile.
        let mut command = Command::new(OWN_PROGRAM);
        for (variable, _) in std::env::vars_os() {
            // It needs nothing of it.
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
            // What the terminal sends to our own group is not for it.
            .process_group(0)
            .spawn()?;
        let stdin = process.stdin.take();
        let mut stdin = stdin.ok_or_else(|| io::Error::other("the watchdog has no input"))?;
        let told = format!(
            "{LOCK}{} {}\n{}\n",
            guard.token(),
            guard.name(),
            micros(guard.watch().deadline())
        );
        stdin.write_all(told.as_bytes()).await?;
        Ok(Self { process, stdin })
    }

    /// It ends the group at the lock's deadline unless it hears of a later one in time, and begins
    /// to when this process is gone.
    pub(crate) async fn over(mut self, group: Pid, lock: LockWatch) -> io::Result<Watchdog> {
        let line = format!("{GROUP}{}\n", group.as_raw_nonzero());
        self.stdin.write_all(line.as_bytes()).await?;
        let (done, is_done) = oneshot::channel();
        Ok(Watchdog {
            process: self.process,
            telling: tokio::spawn(tell(self.stdin, lock, is_done)),
            done,
        })
    }
}

impl Watchdog {
    /// The group has ended.
    pub(crate) async fn dismiss(mut self) {
        let _ = self.done.send(());
        let _ = self.telling.await;
        tokio::select! {
            _ = self.process.wait() => {}
            () = SystemClock.sleep(FAREWELL) => drop(self.process.kill().await),
        }
    }
}

/// Tells the watchdog each new deadline, and when it is not needed any more.
async fn tell(mut watchdog: ChildStdin, lock: LockWatch, mut is_done: oneshot::Receiver<()>) {
    let mut told = None;
    loop {
        let deadline = lock.deadline();
        if told != Some(deadline) {
            // One that is gone cannot be told.
            if watchdog
                .write_all(format!("{}\n", micros(deadline)).as_bytes())
                .await
                .is_err()
            {
                return;
            }
            told = Some(deadline);
        }
        let left = deadline.since(SystemClock.now());
        let look = (left / LOOKS_PER_LEASE).max(LOOK_AGAIN);
        tokio::select! {
            biased;
            // Also when the supervisor gave up: it says so itself.
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

/// What the process does.
pub(crate) fn execute() -> Outcome {
    let (said, hear) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if said.send(line).is_err() {
                return;
            }
        }
    });
    let no_number =
        |_| Failure::usage("a watchdog is started by distlock run, and told in numbers");
    let (mut lock, mut group): (Option<String>, Option<Pid>) = (None, None);
    // Until it has heard of one.
    let mut deadline: Option<Moment> = None;
    loop {
        let left = deadline.map_or(NAP, |deadline| deadline.since(SystemClock.now()));
        if left.is_zero() {
            break;
        }
        match hear.recv_timeout(left.min(NAP)) {
            Ok(line) if line == DONE => return Ok(code::OK),
            Ok(line) => {
                if let Some(is) = line.strip_prefix(LOCK) {
                    lock = Some(is.to_owned());
                } else if let Some(id) = line.strip_prefix(GROUP) {
                    group = Pid::from_raw(id.parse().map_err(no_number)?);
                } else {
                    let micros = Duration::from_micros(line.parse().map_err(no_number)?);
                    deadline = Some(Moment::from_boot(micros));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                group = group.or_else(|| found(lock.as_deref()));
                if let Some(group) = group {
                    ask_to_end(group, deadline);
                }
                break;
            }
        }
    }
    // The supervisor may have been stopped before it said which group it is.
    if let Some(group) = group.or_else(|| found(lock.as_deref())) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(code::OK)
}

/// The group of the command that was started for a lock, by nobody who is there still.
#[expect(
    clippy::disallowed_methods,
    reason = "a process of its own that waits for others"
)]
fn found(lock: Option<&str>) -> Option<Pid> {
    let (token, name) = lock?.split_once(' ')?;
    let variables = [
        format!("DISTLOCK_TOKEN={token}"),
        format!("DISTLOCK_NAME={name}"),
    ];
    let until = SystemClock.now() + FAREWELL;
    loop {
        let group = group_with(&variables).and_then(Pid::from_raw);
        // A process that is about to become the command does not show it yet.
        if group.is_some() || SystemClock.now() >= until {
            return group;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

fn micros(moment: Moment) -> u128 {
    moment.since_boot().as_micros()
}

/// Nobody renews the lock any more: the group has the rest of the lease to come to its end.
#[expect(
    clippy::disallowed_methods,
    reason = "a process of its own that waits for others"
)]
fn ask_to_end(group: Pid, deadline: Option<Moment>) {
    for signal in [Signal::TERM, Signal::CONT] {
        let _ = kill_process_group(group, signal);
    }
    let deadline = deadline.unwrap_or_else(|| SystemClock.now());
    while SystemClock.now() < deadline && somebody_lives_in(group) {
        thread::sleep(LOOK_AGAIN);
    }
}
