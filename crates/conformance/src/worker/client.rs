//! The suite's end of the connection to a worker process.
//!
//! Invariant: a command has exactly one reply, and replies come in the order of the commands.

use std::{process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
};

use super::protocol::{Ask, Command, Refused, ReleaseReport, Reply};
use crate::{Failure, Outcome, Workers, failure::fail, time::within};

/// The time within which a worker must answer a command.
const TOO_LONG: Duration = Duration::from_secs(60);

/// A worker process that has opened the store. Dropping this value kills the process.
#[derive(Debug)]
pub struct Worker {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// A lock that a worker holds. Times are counted from boot.
#[derive(Clone, Copy, Debug)]
pub struct Acquired {
    /// The fencing token of the lock.
    pub token: u64,
    /// The moment before the request.
    pub asked: Duration,
    /// The moment after the grant.
    pub granted: Duration,
    /// The end of the guard's validity, as known at the grant.
    pub deadline: Duration,
}

impl Worker {
    /// Starts a worker and waits until it has opened the store.
    ///
    /// # Errors
    /// When the program cannot be started, does not speak the protocol, or cannot open the store.
    ///
    /// # Cancel safety
    /// Dropping the future kills the worker.
    pub async fn start(workers: &Workers) -> Outcome<Self> {
        let mut process = tokio::process::Command::new(&workers.program)
            .args(&workers.args)
            .envs(workers.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                Failure::new(format!("start {}: {error}", workers.program.display()))
            })?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            fail!("a worker without pipes");
        };
        let mut worker = Self {
            process,
            input,
            output: BufReader::new(output).lines(),
        };
        let open = Command::Open {
            url: workers.url.clone(),
        };
        match worker.ask(&open).await? {
            Reply::Done => Ok(worker),
            other => fail!("a worker cannot open the store: {other:?}"),
        }
    }

    /// The process id; `None` after the process was killed.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Sends a command without waiting for the reply.
    ///
    /// # Errors
    /// When the worker has ended.
    ///
    /// # Cancel safety
    /// Not safe: the dropped future may have written half a line, which the worker cannot parse.
    pub async fn send(&mut self, command: &Command) -> Outcome {
        let mut line = serde_json::to_vec(command)
            .map_err(|error| Failure::new(format!("cannot ask: {error}")))?;
        line.push(b'\n');
        self.input.write_all(&line).await?;
        self.input.flush().await?;
        Ok(())
    }

    /// Waits for the worker's reply to the oldest command that it has not answered yet.
    ///
    /// # Errors
    /// When the worker has ended, has not answered for a minute, or has written a line that is no
    /// reply.
    ///
    /// # Cancel safety
    /// Safe: a later call returns the reply.
    pub async fn reply(&mut self) -> Outcome<Reply> {
        match within(TOO_LONG, self.output.next_line()).await {
            Some(Ok(Some(line))) => serde_json::from_str(&line)
                .map_err(|error| Failure::new(format!("a worker said {line:?}: {error}"))),
            Some(Ok(None)) => fail!("a worker ended before it answered"),
            Some(Err(error)) => fail!("a worker cannot be heard: {error}"),
            None => fail!("a worker was silent for {TOO_LONG:?}"),
        }
    }

    /// Sends a command and waits for the reply.
    ///
    /// # Errors
    /// As [`Worker::send`] and [`Worker::reply`].
    ///
    /// # Cancel safety
    /// Not safe: the reply to this command would count as the reply to the next command.
    pub async fn ask(&mut self, command: &Command) -> Outcome<Reply> {
        self.send(command).await?;
        self.reply().await
    }

    /// Makes the worker take a lock, with automatic renewal.
    ///
    /// # Errors
    /// When the worker does not get the lock.
    ///
    /// # Cancel safety
    /// As [`Worker::ask`].
    pub async fn acquire(
        &mut self,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Outcome<Acquired> {
        let ask = Ask {
            name: name.into(),
            ttl,
            wait,
            renew: true,
            fair: false,
            not_before: Duration::ZERO,
        };
        let reply = self.ask(&Command::Acquire(ask)).await?;
        Self::expect_acquired(reply)
    }

    /// Makes the worker resume `ticket`, the text of a [`Ticket`](distlock_core::Ticket). The
    /// worker then holds the lock of the ticket.
    ///
    /// # Errors
    /// When the worker cannot resume the ticket.
    ///
    /// # Cancel safety
    /// As [`Worker::ask`].
    pub async fn resume(&mut self, ticket: String) -> Outcome<Acquired> {
        let reply = self.ask(&Command::Resume { ticket }).await?;
        Self::expect_acquired(reply)
    }

    /// Makes the worker release its lock.
    ///
    /// # Errors
    /// When the worker holds no lock.
    ///
    /// # Cancel safety
    /// As [`Worker::ask`].
    pub async fn release(&mut self) -> Outcome<ReleaseReport> {
        match self.ask(&Command::Release).await? {
            Reply::Released { report, .. } => Ok(report),
            other => fail!("a worker could not release: {other:?}"),
        }
    }

    /// Stops the worker with SIGSTOP: the process stands still until [`Worker::go_on`].
    ///
    /// # Errors
    /// When the process has ended, or the system refuses the signal.
    pub(crate) fn stop(&self) -> Outcome {
        self.signal(Signal::STOP)
    }

    /// Lets a stopped worker go on.
    ///
    /// # Errors
    /// As [`Worker::stop`].
    pub(crate) fn go_on(&self) -> Outcome {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Outcome {
        let process = self.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let Some(process) = process else {
            fail!("the worker has ended");
        };
        kill_process(process, signal)
            .map_err(|error| Failure::new(format!("signal a worker: {error}")))
    }

    /// Kills the worker with SIGKILL and waits until the process has ended.
    ///
    /// # Errors
    /// When the system refuses the signal.
    ///
    /// # Cancel safety
    /// Safe: the signal is sent before the first await.
    pub async fn kill(mut self) -> Outcome {
        self.process.kill().await?;
        Ok(())
    }

    /// Returns the lock that a reply describes. Any reply but [`Reply::Acquired`] is a failure.
    fn expect_acquired(reply: Reply) -> Outcome<Acquired> {
        match reply {
            Reply::Acquired {
                token,
                asked,
                granted,
                deadline,
            } => Ok(Acquired {
                token,
                asked,
                granted,
                deadline,
            }),
            Reply::Refused(Refused { kind, message, .. }) => {
                fail!("a worker did not get the lock: {kind}: {message}")
            }
            other => fail!("a worker should have the lock: {other:?}"),
        }
    }
}
