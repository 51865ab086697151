//! The loop of a worker process. A worker executes the commands of the suite with one locker, and
//! keeps at most one guard between commands.
//!
//! Invariant: each command gets exactly one reply. A failure of the store is a reply, never the end
//! of the worker.

use std::{future::Future, time::Duration};

use distlock_core::{
    Clock as _, Error, ErrorKind, FencingToken, Guard, Locker, Moment, Released, Renew, Result,
    Store, SystemClock,
};
use distlock_recipes::shared::{RwLock, Semaphore, SharedBuilder, SharedGuard, SharedMode};
use futures_util::FutureExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, stdin, stdout};

use super::protocol::{Ask, Command, Refused, ReleaseReport, Reply, SharedWish};
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
    store: Store,
    /// The lock that the worker keeps between two commands.
    guard: Option<Guard>,
}

impl WorkerState {
    fn new(store: Store) -> Self {
        Self {
            locker: store.locker(),
            store,
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
            Command::Cycles { ask, hold, count } => self.run_cycles(&ask, None, hold, count).await,
            Command::SharedCycles {
                ask,
                wish,
                hold,
                count,
            } => {
                let wanted = self.shared_builder(&ask, wish)?;
                self.run_cycles(&ask, Some(wanted), hold, count).await
            }
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

    /// Takes, holds and releases the lock `count` times; the shared lock, if one is wanted. A
    /// refused cycle does not end the others.
    async fn run_cycles(
        &self,
        ask: &Ask,
        shared: Option<SharedBuilder>,
        hold: Duration,
        count: u32,
    ) -> Reply {
        let mut holds = Vec::new();
        let mut releases = Vec::new();
        let mut refusals = Vec::new();
        let mut asked = wait_for_start(ask).await;
        for _ in 0..count {
            let held = match &shared {
                None => acquire(&self.locker, ask).await.map(Held::Alone),
                Some(wanted) => wanted.clone().acquire().await.map(Held::Shared),
            };
            match held {
                Err(error) => refusals.push(refusal_report(&error, asked)),
                Ok(held) => {
                    let (from, until) = hold_while_valid(&held, hold).await;
                    holds.extend(held.locks().into_iter().map(|lock| Hold {
                        lock,
                        who: this_process(),
                        token: held.token().get(),
                        from: from.since_boot(),
                        until: until.since_boot(),
                    }));
                    releases.push(release_report(held.release().await));
                }
            }
            asked = now();
        }
        Reply::Cycles {
            holds,
            releases,
            refused: refusals,
        }
    }

    /// The shared lock that the suite wants.
    fn shared_builder(&self, ask: &Ask, wish: SharedWish) -> Result<SharedBuilder> {
        let wanted = match wish {
            SharedWish::Read => RwLock::new(&self.store, &ask.name)?.read(),
            SharedWish::Write => RwLock::new(&self.store, &ask.name)?.write(),
            SharedWish::Permits { count, of } => {
                Semaphore::new(&self.store, &ask.name, of)?.permits(count)
            }
        };
        Ok(wanted.ttl(ask.ttl).wait(ask.wait).holder(this_process()))
    }

    fn held_guard(&self) -> Result<&Guard> {
        self.guard.as_ref().ok_or_else(nothing_held_error)
    }
}

/// This process in a history.
fn this_process() -> String {
    format!("process {}", std::process::id())
}

/// The lock of one cycle.
enum Held {
    Alone(Guard),
    Shared(SharedGuard),
}

impl Held {
    /// The name of the lock; of permits one name for each of them.
    fn locks(&self) -> Vec<String> {
        match self {
            Self::Shared(guard) if guard.mode() == SharedMode::Permits => {
                let name = guard.name();
                let indices = guard.indices().into_iter();
                indices.map(|index| format!("{name}#{index}")).collect()
            }
            Self::Shared(guard) => vec![guard.name().to_string()],
            Self::Alone(guard) => vec![guard.name().to_string()],
        }
    }

    fn token(&self) -> FencingToken {
        match self {
            Self::Alone(guard) => guard.token(),
            Self::Shared(guard) => guard.token(),
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Alone(guard) => guard.is_valid(),
            Self::Shared(guard) => guard.is_valid(),
        }
    }

    async fn release(self) -> Released {
        match self {
            Self::Alone(guard) => guard.release().await,
            Self::Shared(guard) => guard.release().await,
        }
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
async fn hold_while_valid(held: &Held, time: Duration) -> (Moment, Moment) {
    let from = now();
    let mut until = from;
    loop {
        let looked = now();
        if !held.is_valid() {
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
