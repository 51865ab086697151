//! The loop of a worker process. A worker executes the commands of the suite with one locker, and
//! keeps at most one guard between commands.
//!
//! Invariant: each command gets exactly one reply. A failure of the store is a reply, never the end
//! of the worker.

use std::{future::Future, time::Duration};

use distlock_core::{
    Clock as _, Error, ErrorKind, Guard, Locker, Moment, Released, Renew, Result, Store,
    SystemClock,
};
use futures_util::FutureExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, stdin, stdout};

use super::protocol::{Ask, Command, Refused, ReleaseReport, Reply};
use crate::{
    Failure, Outcome,
    failure::fail,
    history::Hold,
    time::{now, sleep, sleep_until},
};

/// Executes the suite's commands until standard input ends. `open` opens the store of a URL.
///
/// # Errors
/// When a line is not a command, or the store is opened twice or not at all. Failures of the store
/// are replies.
///
/// # Cancel safety
/// Dropping the future drops the guard that the worker keeps. The drop releases the lock in the
/// background. If the process ends first, the lease expires.
pub async fn run<F>(open: impl Fn(String) -> F) -> Outcome
where
    F: Future<Output = Result<Store>>,
{
    let mut lines = BufReader::new(stdin()).lines();
    let mut output = stdout();
    let mut worker: Option<WorkerState> = None;
    while let Some(line) = lines.next_line().await? {
        let command = serde_json::from_str(&line)
            .map_err(|error| Failure::new(format!("not a command: {error}")))?;
        let asked = now();
        let answer = match (command, &mut worker) {
            (Command::Open { url }, None) => open(url).await.map(WorkerState::new).map(|state| {
                worker = Some(state);
                Reply::Done
            }),
            (Command::Open { .. }, Some(_)) | (_, None) => fail!("opened twice, or not at all"),
            (command, Some(worker)) => worker.execute(command).await,
        };
        let reply = answer.unwrap_or_else(|error| Reply::Refused(refusal_report(&error, asked)));
        let mut line = serde_json::to_vec(&reply)
            .map_err(|error| Failure::new(format!("cannot answer: {error}")))?;
        line.push(b'\n');
        output.write_all(&line).await?;
        output.flush().await?;
    }
    Ok(())
}

/// The worker after it has opened the store.
struct WorkerState {
    locker: Locker,
    /// This value keeps the store open.
    _store: Store,
    /// The lock that the worker keeps between two commands.
    guard: Option<Guard>,
}

impl WorkerState {
    fn new(store: Store) -> Self {
        Self {
            locker: store.locker(),
            _store: store,
            guard: None,
        }
    }

    /// Executes one command. The caller sends an error as a reply.
    async fn execute(&mut self, command: Command) -> Result<Reply> {
        Ok(match command {
            Command::Acquire(ask) => {
                let asked = wait_for_start(&ask).await;
                let guard = acquire(&self.locker, &ask).await?;
                self.keep_guard(guard, asked)
            }
            Command::Cycles { ask, hold, count } => self.run_cycles(&ask, hold, count).await?,
            Command::Extend { ttl } => {
                self.held_guard()?.extend(ttl).await?;
                Reply::Done
            }
            Command::State => {
                let guard = self.held_guard()?;
                let at = now();
                Reply::State {
                    lost: guard.lost().now_or_never(),
                    valid: guard.is_valid(),
                    remaining: guard.remaining(),
                    at: at.since_boot(),
                }
            }
            Command::Release => {
                let guard = self.guard.take().ok_or_else(nothing_held_error)?;
                let asked = now().since_boot();
                Reply::Released {
                    report: release_report(guard.release().await),
                    asked,
                }
            }
            Command::IntoTicket => {
                let guard = self.guard.take().ok_or_else(nothing_held_error)?;
                Reply::Ticket {
                    ticket: guard.into_ticket().await?.to_string(),
                }
            }
            Command::Resume { ticket } => {
                let asked = now();
                let guard = self.locker.resume(&ticket.parse()?).await?;
                self.keep_guard(guard, asked)
            }
            Command::Block { time } => {
                block_thread(time);
                Reply::Done
            }
            Command::Open { .. } => {
                return Err(Error::new(ErrorKind::InvalidArgument, "opened twice"));
            }
        })
    }

    /// Keeps a guard that was just granted, and describes it.
    fn keep_guard(&mut self, guard: Guard, asked: Moment) -> Reply {
        let granted = now();
        let reply = Reply::Acquired {
            token: guard.token().get(),
            asked: asked.since_boot(),
            granted: granted.since_boot(),
            deadline: (granted + guard.remaining()).since_boot(),
        };
        self.guard = Some(guard);
        reply
    }

    /// Takes, holds and releases the lock `count` times. A refused cycle does not end the others.
    async fn run_cycles(&self, ask: &Ask, hold: Duration, count: u32) -> Result<Reply> {
        let mut holds = Vec::new();
        let mut releases = Vec::new();
        let mut refusals = Vec::new();
        let mut asked = wait_for_start(ask).await;
        for _ in 0..count {
            match acquire(&self.locker, ask).await {
                Err(error) => refusals.push(refusal_report(&error, asked)),
                Ok(guard) => {
                    let (from, until) = hold_while_valid(&guard, hold).await;
                    holds.push(Hold {
                        lock: ask.name.clone(),
                        who: format!("process {}", std::process::id()),
                        token: guard.token().get(),
                        from: from.since_boot(),
                        until: until.since_boot(),
                    });
                    releases.push(release_report(guard.release().await));
                }
            }
            asked = now();
        }
        Ok(Reply::Cycles {
            holds,
            releases,
            refused: refusals,
        })
    }

    fn held_guard(&self) -> Result<&Guard> {
        self.guard.as_ref().ok_or_else(nothing_held_error)
    }
}

/// Waits until the request may start. Returns the moment after the wait.
async fn wait_for_start(ask: &Ask) -> Moment {
    sleep_until(Moment::from_boot(ask.not_before)).await;
    SystemClock.now()
}

async fn acquire(locker: &Locker, ask: &Ask) -> Result<Guard> {
    let mut wanted = locker.lock(&ask.name);
    if ask.fair {
        wanted = wanted.fair();
    }
    wanted
        .ttl(ask.ttl)
        .wait(ask.wait)
        .renew(if ask.renew {
            Renew::Auto
        } else {
            Renew::Manual
        })
        .holder(format!("worker {}", std::process::id()))
        .acquire()
        .await
}

/// Holds a lock for a time, or until it is lost. Returns the first and the last moment at which the
/// guard was seen to be valid. A process that was stopped, and continues after its lease has ended,
/// must not report the time of the stop as a part of the hold.
async fn hold_while_valid(guard: &Guard, time: Duration) -> (Moment, Moment) {
    let from = now();
    let mut until = from;
    loop {
        let looked = now();
        if !guard.is_valid() {
            return (from, until);
        }
        until = looked;
        match (from + time).since(looked) {
            Duration::ZERO => return (from, until),
            left => sleep(left.min(Duration::from_millis(5))).await,
        }
    }
}

fn release_report(released: Released) -> ReleaseReport {
    match released {
        Released::Clean => ReleaseReport::Clean,
        Released::AlreadyLost(reason) => ReleaseReport::AlreadyLost(reason),
        Released::Unconfirmed(error) => ReleaseReport::Unconfirmed(error.to_string()),
        // The type may get more variants. An unknown variant never counts as a clean release.
        other => ReleaseReport::Unconfirmed(format!("{other:?}")),
    }
}

fn refusal_report(error: &Error, asked: Moment) -> Refused {
    Refused {
        kind: format!("{:?}", error.kind()),
        message: error.to_string(),
        asked: asked.since_boot(),
        answered: now().since_boot(),
    }
}

fn nothing_held_error() -> Error {
    Error::new(ErrorKind::NotHeld, "this worker holds nothing")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the point is to block the runtime, as a careless caller would"
)]
fn block_thread(time: Duration) {
    std::thread::sleep(time);
}
