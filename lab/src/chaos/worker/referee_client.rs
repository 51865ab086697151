//! The connections from a worker to the referee.

use std::{
    io::Write as _,
    os::unix::net::UnixStream,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, SystemClock};
use distlock_core::sync::Mutex;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
};

use crate::chaos::{
    history::{CallKind, CallResult, Event, FencedAnswer, Micros, micros_since_boot, now},
    referee::{RegisterVersions, RunPhase, WorkerMessage},
};

/// The connection of the process for events. An event that was written is not lost if the process
/// is killed right after.
#[derive(Debug)]
pub(super) struct HistoryWriter {
    stream: Mutex<UnixStream>,
    numbers: AtomicU64,
}

impl HistoryWriter {
    /// Connects to the referee, and sends the number of the worker.
    pub(super) fn connect(socket: &Path, worker: u32) -> Result<Self> {
        let mut stream = UnixStream::connect(socket).context("the referee")?;
        stream.write_all(format!("{worker}\n").as_bytes())?;
        Ok(Self {
            stream: Mutex::new(stream),
            numbers: AtomicU64::new(1),
        })
    }

    /// Returns a number that this process has not used yet.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends an event to the history. The process exits if the referee has ended.
    pub(super) fn record(&self, event: Event) {
        let Ok(mut line) = serde_json::to_vec(&WorkerMessage::Note(event)) else {
            return;
        };
        line.push(b'\n');
        let mut stream = self.stream.lock();
        // If the referee has ended, the run has ended too.
        if stream.write_all(&line).is_err() {
            std::process::exit(0);
        }
    }

    /// Blocks this thread for a while, and records the stall.
    #[expect(
        clippy::disallowed_methods,
        reason = "the lab blocks a thread on purpose"
    )]
    pub(super) fn block_this_thread(&self, time: Duration) {
        let from = now();
        // The stall is recorded before it begins, because the process may be killed meanwhile.
        let to = micros_since_boot(SystemClock.now() + time);
        self.record(Event::Stalled { from, to });
        std::thread::sleep(time);
        self.record(Event::Stalled { from, to: now() });
    }

    /// Records that a call begins.
    pub(super) fn begin_call(&self, what: CallKind, bound: Duration) -> OpenCall<'_> {
        let call = self.next_number();
        self.record(Event::Called {
            call,
            what,
            at: now(),
            bound_us: as_micros(bound),
        });
        OpenCall {
            history: self,
            call,
            answer: CallResult::Dropped,
        }
    }
}

/// A call that has not returned. Dropping the value records that the future was dropped.
#[derive(Debug)]
pub(super) struct OpenCall<'a> {
    history: &'a HistoryWriter,
    call: u64,
    answer: CallResult,
}

impl OpenCall<'_> {
    /// Records the end of the call with this answer.
    pub(super) fn finish(mut self, answer: CallResult) {
        self.answer = answer;
    }

    /// Records the end of the call: an error counts as failed, and any other result as done.
    pub(super) fn finish_with<T, E>(self, result: &Result<T, E>) {
        self.finish(match result {
            Ok(_) => CallResult::Done,
            Err(_) => CallResult::Failed,
        });
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.history.record(Event::Answered {
            call: self.call,
            at: now(),
            answer: self.answer,
        });
    }
}

/// The connection of one task for questions to the referee.
#[derive(Debug)]
pub(super) struct RefereeClient {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl RefereeClient {
    /// Connects to the referee, and sends the number of the worker.
    pub(super) async fn connect(socket: &Path, worker: u32) -> Result<Self> {
        let stream = tokio::net::UnixStream::connect(socket).await?;
        let (reader, mut writer) = stream.into_split();
        writer.write_all(format!("{worker}\n").as_bytes()).await?;
        Ok(Self {
            lines: BufReader::new(reader).lines(),
            writer,
        })
    }

    /// Reads both registers of a lock.
    pub(super) async fn read(&mut self, name: String, token: u64) -> Result<RegisterVersions> {
        self.ask(&WorkerMessage::Read { name, token }).await
    }

    /// Writes both registers of a lock. `seen` is the last read.
    pub(super) async fn write(
        &mut self,
        name: String,
        token: u64,
        seen: RegisterVersions,
    ) -> Result<FencedAnswer> {
        self.ask(&WorkerMessage::Write { name, token, seen }).await
    }

    /// Waits until the referee starts the roll call.
    pub(super) async fn wait_for_roll_call(&mut self) -> Result<()> {
        let mut phase: RunPhase = self.ask(&WorkerMessage::Phases).await?;
        while phase != RunPhase::RollCall {
            phase = self.receive_answer().await?;
        }
        Ok(())
    }

    /// Sends a message, and waits for the answer.
    async fn ask<T: DeserializeOwned>(&mut self, say: &WorkerMessage) -> Result<T> {
        let mut line = serde_json::to_vec(say)?;
        line.push(b'\n');
        self.writer.write_all(&line).await?;
        self.receive_answer().await
    }

    /// Waits for the next line of the referee.
    async fn receive_answer<T: DeserializeOwned>(&mut self) -> Result<T> {
        let line = self
            .lines
            .next_line()
            .await?
            .context("the referee is gone")?;
        Ok(serde_json::from_str(&line)?)
    }
}

/// Converts a duration to microseconds.
fn as_micros(time: Duration) -> Micros {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
