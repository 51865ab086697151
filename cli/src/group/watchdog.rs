//! A process that ends the command when its supervisor cannot: it was killed, or it has stood still
//! for longer than the lease.

use std::{
    ffi::OsStr,
    io::{self, BufRead as _},
    process::Stdio,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use distlock::{Clock as _, LockWatch, Moment, SystemClock};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStdin, Command},
    sync::oneshot,
    task::JoinHandle,
};

use super::somebody_lives_in;
use crate::exit::{Failure, Outcome, code};

/// The first argument of the process, which nobody gives by hand.
pub(crate) const NAME: &str = "watchdog";

/// How often the lease is looked at. Renewals come at a third of it.
const LOOKS_PER_LEASE: u32 = 20;
/// How long it may take to end when it is not needed any more.
const FAREWELL: Duration = Duration::from_secs(1);
/// Longest time for which it does not look at the clock, which also counts while the machine sleeps.
const NAP: Duration = Duration::from_secs(1);
/// How often the rest of a group is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The watchdog over one group, seen from its supervisor.
#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Child,
    telling: JoinHandle<()>,
    done: oneshot::Sender<()>,
}

impl Watchdog {
    /// Starts one. It ends the group at the lock's deadline unless it hears of a later one in time, and begins
    /// to when this process is gone.
    pub(crate) fn over(group: Pid, lock: LockWatch) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        for (variable, _) in std::env::vars_os() {
            // It needs nothing of it.
            if variable.to_string_lossy().starts_with("DISTLOCK_") {
                command.env_remove(variable);
            }
        }
        let mut process = command
            .args([NAME, &group.as_raw_nonzero().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What the terminal sends to our own group is not for it.
            .process_group(0)
            .spawn()?;
        let stdin = process.stdin.take();
        let stdin = stdin.ok_or_else(|| io::Error::other("the watchdog has no input"))?;
        let (done, is_done) = oneshot::channel();
        Ok(Self {
            process,
            telling: tokio::spawn(tell(stdin, lock, is_done)),
            done,
        })
    }

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
            let micros = deadline.since_boot().as_micros();
            // One that is gone cannot be told.
            if watchdog
                .write_all(format!("{micros}\n").as_bytes())
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
                    let _ = watchdog.write_all(b"done\n").await;
                }
                return;
            }
            () = SystemClock.sleep(look) => {}
        }
    }
}

/// What the process does.
pub(crate) fn execute(group: Option<&OsStr>) -> Outcome {
    let group = group.and_then(OsStr::to_str).and_then(|id| id.parse().ok());
    let Some(group) = group.and_then(Pid::from_raw) else {
        return Err(Failure::usage("a watchdog is started by distlock run"));
    };
    let (said, hear) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if said.send(line).is_err() {
                return;
            }
        }
    });
    // Until it has heard of one.
    let mut deadline: Option<Moment> = None;
    loop {
        let left = deadline.map_or(NAP, |deadline| deadline.since(SystemClock.now()));
        if left.is_zero() {
            break;
        }
        match hear.recv_timeout(left.min(NAP)) {
            Ok(line) if line == "done" => return Ok(code::OK),
            Ok(line) => {
                let micros = line
                    .parse()
                    .map_err(|_| Failure::usage("a deadline is a number"))?;
                deadline = Some(Moment::from_boot(Duration::from_micros(micros)));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                ask_to_end(group, deadline);
                break;
            }
        }
    }
    let _ = kill_process_group(group, Signal::KILL);
    Ok(code::OK)
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
