//! The referee: keeps the registers that the workers' locks protect, and writes the history.
//!
//! Workers send their events through a socket, so an event that was sent is in the history even if
//! its worker is killed right after. The referee must never change the order of the events of one
//! worker.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use distlock::{Clock as _, SystemClock};
use distlock_core::sync::Mutex;
use distlock_harness::{Signal, signal};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream, unix::OwnedWriteHalf},
    sync::{oneshot, watch},
    task::JoinHandle,
};

use super::history::{Event, FencedAnswer, HistoryEntry, NO_TOKEN};

/// One message of a worker. The first line of a connection is the worker's number.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WorkerMessage {
    /// An event for the history. The referee sends no answer.
    Note(Event),
    /// A read of both registers. The referee answers with [`RegisterVersions`].
    Read { name: String, token: u64 },
    /// A write to both registers. The referee answers with [`FencedAnswer`].
    Write {
        name: String,
        token: u64,
        seen: RegisterVersions,
    },
    /// A request for the phases of the run. The referee sends each new [`RunPhase`].
    Phases,
}

/// Number of writes to each register of a name at the time of a read.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub(crate) struct RegisterVersions {
    pub(crate) fenced: u64,
    pub(crate) unfenced: u64,
}

/// The phase of a run.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunPhase {
    Working,
    /// All faults are healed: each task takes each lock once more, and the worker ends.
    RollCall,
}

/// Two registers that one lock protects.
#[derive(Debug, Default)]
struct Registers {
    fenced: u64,
    unfenced: u64,
    /// The highest token that the fenced register has seen.
    highest: u64,
}

/// Serves all workers of a run until it is dropped.
#[derive(Debug)]
pub(crate) struct Referee {
    state: Arc<RefereeState>,
    acceptor: JoinHandle<()>,
}

/// The state that the connections of all workers share.
#[derive(Debug)]
struct RefereeState {
    history: Mutex<Vec<HistoryEntry>>,
    registers: Mutex<HashMap<String, Registers>>,
    processes: Mutex<HashMap<u32, u32>>,
    /// The workers to stop at their next grant, each with the sender that reports the stop.
    stops_at_grant: Mutex<HashMap<u32, oneshot::Sender<()>>>,
    phase: watch::Sender<RunPhase>,
    /// A planted bug: the fenced register compares the token, and writes a moment later.
    late_writes: bool,
}

impl Referee {
    /// Starts to serve workers on a socket. `late_writes` plants a bug in the fenced registers.
    pub(crate) fn start(socket: &Path, late_writes: bool) -> Result<Self> {
        let listener = UnixListener::bind(socket).context("the referee's socket")?;
        let state = Arc::new(RefereeState {
            history: Mutex::default(),
            registers: Mutex::default(),
            processes: Mutex::default(),
            stops_at_grant: Mutex::default(),
            phase: watch::Sender::new(RunPhase::Working),
            late_writes,
        });
        let serving = Arc::clone(&state);
        let acceptor = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&serving);
                tokio::spawn(async move {
                    // A killed worker may have sent half a line, so an error here is expected.
                    let _ = state.serve(stream).await;
                });
            }
        });
        Ok(Self { state, acceptor })
    }

    /// Adds an event that the worker itself cannot report.
    pub(crate) fn record(&self, worker: u32, event: Event) {
        self.state.record(worker, event);
    }

    /// Starts a phase of the run. Workers that requested the phases receive the new phase.
    pub(crate) fn start_phase(&self, phase: RunPhase) {
        self.state.phase.send_replace(phase);
    }

    /// Returns the history until now.
    pub(crate) fn history(&self) -> Vec<HistoryEntry> {
        self.state.history.lock().clone()
    }

    /// Tells whether a worker has reported that it is ready.
    pub(crate) fn has_started(&self, worker: u32) -> bool {
        self.state.processes.lock().contains_key(&worker)
    }

    /// Tells whether a worker has reported its regular end.
    pub(crate) fn has_finished(&self, worker: u32) -> bool {
        let history = self.state.history.lock();
        history
            .iter()
            .rev()
            .any(|it| it.worker == worker && matches!(it.event, Event::Finished { .. }))
    }

    /// Stops a worker at its next grant, before the worker can use the grant. The receiver resolves
    /// when the worker is stopped.
    pub(crate) fn stop_at_next_grant(&self, worker: u32) -> oneshot::Receiver<()> {
        let (stopped, seen) = oneshot::channel();
        self.state.stops_at_grant.lock().insert(worker, stopped);
        seen
    }

    /// Cancels the stop of a worker.
    pub(crate) fn cancel_stop(&self, worker: u32) {
        self.state.stops_at_grant.lock().remove(&worker);
    }
}

impl Drop for Referee {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

impl RefereeState {
    /// Adds an event to the history.
    fn record(&self, worker: u32, event: Event) {
        self.history.lock().push(HistoryEntry { worker, event });
    }

    /// Answers the messages of one connection until the worker closes it.
    async fn serve(&self, stream: UnixStream) -> Result<()> {
        let (reader, mut writer) = stream.into_split();
        let mut lines = BufReader::new(reader).lines();
        let worker: u32 = lines.next_line().await?.context("a number")?.parse()?;
        while let Some(line) = lines.next_line().await? {
            match serde_json::from_str(&line)? {
                WorkerMessage::Note(event) => self.receive_event(worker, event),
                WorkerMessage::Read { name, token } => {
                    send_answer(&mut writer, &self.read(name, token)).await?;
                }
                WorkerMessage::Write { name, token, seen } => {
                    let fenced = self.write(worker, name, token, seen).await;
                    send_answer(&mut writer, &fenced).await?;
                }
                WorkerMessage::Phases => {
                    let mut phase = self.phase.subscribe();
                    loop {
                        let now = *phase.borrow_and_update();
                        send_answer(&mut writer, &now).await?;
                        if phase.changed().await.is_err() {
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds an event of a worker to the history, after the actions that the event causes.
    fn receive_event(&self, worker: u32, event: Event) {
        match &event {
            Event::Started { pid } => {
                self.processes.lock().insert(worker, *pid);
            }
            Event::Granted { .. } => self.stop_if_requested(worker),
            _ => {}
        }
        self.record(worker, event);
    }

    /// Stops the worker if that was requested. The worker uses a grant only after a read of the
    /// registers here, and a stopped process cannot send that read.
    fn stop_if_requested(&self, worker: u32) {
        let Some(stopped) = self.stops_at_grant.lock().remove(&worker) else {
            return;
        };
        let process = self.processes.lock().get(&worker).copied();
        if process.is_some_and(|process| signal(process, Signal::STOP).is_ok()) {
            let _ = stopped.send(());
        }
    }

    /// Reads both registers. The fenced register remembers the token of the reader. Otherwise an
    /// older holder could write after the read of a newer holder, and the newer holder would
    /// overwrite that write.
    fn read(&self, name: String, token: u64) -> RegisterVersions {
        let mut all = self.registers.lock();
        let it = all.entry(name).or_default();
        it.highest = it.highest.max(token);
        RegisterVersions {
            fenced: it.fenced,
            unfenced: it.unfenced,
        }
    }

    /// Writes both registers, and records whether an update was lost.
    async fn write(
        &self,
        worker: u32,
        name: String,
        token: u64,
        seen: RegisterVersions,
    ) -> FencedAnswer {
        // The fenced register refuses a write without a token.
        let good = token != NO_TOKEN
            && token
                >= self
                    .registers
                    .lock()
                    .entry(name.clone())
                    .or_default()
                    .highest;
        if self.late_writes {
            SystemClock.sleep(Duration::from_millis(150)).await;
        }
        let mut all = self.registers.lock();
        let it = all.entry(name.clone()).or_default();
        // The planted bug does not compare again, although another holder may have written.
        let good = if self.late_writes {
            good
        } else {
            good && token >= it.highest
        };
        let fenced = if !good {
            FencedAnswer::Refused
        } else {
            it.highest = it.highest.max(token);
            it.fenced += 1;
            if it.fenced == seen.fenced + 1 {
                FencedAnswer::Accepted
            } else {
                FencedAnswer::AcceptedAndLost
            }
        };
        it.unfenced += 1;
        let unfenced_lost = it.unfenced != seen.unfenced + 1;
        drop(all);
        self.record(
            worker,
            Event::Wrote {
                name,
                fenced,
                unfenced_lost,
            },
        );
        fenced
    }
}

/// Sends an answer as one line of JSON.
async fn send_answer(writer: &mut OwnedWriteHalf, answer: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    writer.write_all(&line).await?;
    Ok(())
}
