//! A run: starts the processes, and combines their results.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use distlock_core::{Clock as _, SystemClock};
use distlock_report::Latencies;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::JoinSet,
};

use super::{
    raw::{RawConnection, open_store},
    results::HandOverResults,
    worker::Mode,
};

/// Duration of the measurement of round trips, and again of the measurement of durable changes.
/// Both run before the processes start, so nothing else uses the server meanwhile.
const MEASURING_TIME: Duration = Duration::from_secs(1);

/// The number of processes and tasks that compete for the lock, and their hold time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contention {
    pub(crate) processes: u32,
    /// Tasks of each process.
    pub(crate) tasks: u32,
    /// Time that each task holds the lock.
    pub(crate) hold: Duration,
    /// How the processes take the lock.
    pub(crate) mode: Mode,
}

/// A time in which one process held the lock, from the grant to the start of the release. Both
/// moments are counted from boot, so that the run can compare the moments of several processes.
#[derive(Clone, Copy, Debug)]
struct Hold {
    process: usize,
    granted: Duration,
    released: Duration,
}

/// Lets all processes take and release one lock for `time`, and measures the hand-overs. Those from
/// readers to a writer are measured beside those of the exclusive lock, on the same server.
pub(crate) async fn run(
    url: &str,
    contention: Contention,
    time: Duration,
) -> anyhow::Result<HandOverResults> {
    // The first opening creates the tables of the store. Otherwise all processes would try to
    // create the tables at once.
    open_store(url).await?.close().await;
    let mut raw = RawConnection::connect(url).await.context("connect")?;
    let mut trips = Latencies::new();
    let until = SystemClock.now() + MEASURING_TIME;
    while SystemClock.now() < until {
        let start = SystemClock.now();
        raw.ping().await?;
        trips.record(SystemClock.now().since(start));
    }
    let mut changes = Latencies::new();
    if raw.prepare_changes().await? {
        let until = SystemClock.now() + MEASURING_TIME;
        while SystemClock.now() < until {
            let start = SystemClock.now();
            raw.make_durable_change().await?;
            changes.record(SystemClock.now().since(start));
        }
    }
    let mut exclusive = None;
    // The other process is in the line long before the end of each hold.
    let mut pause = Duration::ZERO;
    if contention.mode == Mode::ReadWrite {
        pause = contention.hold / 2;
        let alone = Contention {
            mode: Mode::Exclusive,
            ..contention
        };
        exclusive = Some(compete(url, alone, pause, time).await?.passed);
    }
    let Competed {
        passed,
        grants,
        requests,
    } = compete(url, contention, pause, time).await?;
    Ok(HandOverResults {
        trips,
        changes,
        passed,
        exclusive,
        grants,
        requests,
        seconds: time.as_secs_f64(),
    })
}

/// What all processes together have seen.
struct Competed {
    passed: Latencies,
    grants: Vec<u64>,
    requests: u64,
}

/// Starts the processes, and lets them take and release the lock, with a pause after each hold.
async fn compete(
    url: &str,
    contention: Contention,
    pause: Duration,
    time: Duration,
) -> anyhow::Result<Competed> {
    let mut starting = JoinSet::new();
    for _ in 0..contention.processes {
        let url = url.to_owned();
        starting.spawn(async move { Worker::start(&url).await });
    }
    let mut workers = Vec::new();
    while let Some(started) = starting.join_next().await {
        workers.push(started??);
    }
    let mode = contention.mode;
    for (at, process) in workers.iter_mut().enumerate() {
        let hold = contention.hold.min(Duration::from_secs(3600)).as_micros();
        let (tasks, own) = (contention.tasks, mode.of_process(at).key());
        let pause = pause.as_micros();
        let order = format!("{} {tasks} {hold} {pause} {own}", time.as_millis());
        process.send_line(&order).await?;
    }
    let mut holds = Vec::new();
    let mut grants = Vec::new();
    let mut requests = 0;
    for (at, process) in workers.into_iter().enumerate() {
        let (own, sent) = process.read_holds(at).await?;
        requests += sent;
        grants.push(u64::try_from(own.len())?);
        holds.extend(own);
    }
    Ok(Competed {
        passed: hand_overs(holds, mode)?,
        grants,
        requests,
    })
}

/// Returns the times from the last release to the next grant in another process that needed it.
fn hand_overs(mut holds: Vec<Hold>, mode: Mode) -> anyhow::Result<Latencies> {
    holds.sort_unstable_by_key(|hold| hold.granted);
    let is_shared = |hold: &Hold| mode.of_process(hold.process).is_shared();
    let mut passed = Latencies::new();
    // The holds that were released last, by whether the holder shared the lock.
    let mut last: [Option<Hold>; 2] = [None; 2];
    for hold in holds {
        let own = usize::from(is_shared(&hold));
        let excluded = last.iter().enumerate().filter(|(kind, _)| own + kind < 2);
        let excluded: Vec<Hold> = excluded.filter_map(|(_, it)| *it).collect();
        let before = excluded.iter().max_by_key(|it| it.released);
        if let Some(before) = before {
            ensure!(
                before.released <= hold.granted,
                "two at once: {before:?} {hold:?}"
            );
            let is_counted = mode != Mode::ReadWrite || is_shared(before);
            if before.process != hold.process && is_counted {
                passed.record(hold.granted.saturating_sub(before.released));
            }
        }
        if last[own].is_none_or(|it| it.released < hold.released) {
            last[own] = Some(hold);
        }
    }
    Ok(passed)
}

/// One of the processes that compete for the lock, as seen by the run.
struct Worker {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts a process, and waits until the process is connected. The URL is written to the input
    /// of the process, because every user can read the arguments of a process.
    async fn start(url: &str) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["peers", "pass-on"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting a process")?;
        let input = process.stdin.take().context("its input")?;
        let output = process.stdout.take().context("its output")?;
        let mut worker = Self {
            process,
            input,
            output: BufReader::new(output).lines(),
        };
        worker.send_line(url).await?;
        let line = worker.output.next_line().await?;
        ensure!(line.as_deref() == Some("ready"), "a process is not ready");
        Ok(worker)
    }

    async fn send_line(&mut self, line: &str) -> anyhow::Result<()> {
        self.input.write_all(line.as_bytes()).await?;
        self.input.write_all(b"\n").await?;
        Ok(self.input.flush().await?)
    }

    /// Waits until the process ends. Returns the times in which the process held the lock, and the
    /// number of requests that the process sent.
    async fn read_holds(mut self, process: usize) -> anyhow::Result<(Vec<Hold>, u64)> {
        let sent = self.output.next_line().await?;
        let sent = sent.context("a process ended early")?.parse()?;
        let mut holds = Vec::new();
        while let Some(line) = self.output.next_line().await? {
            let (granted, released) = line.split_once(' ').context("two moments")?;
            holds.push(Hold {
                process,
                granted: Duration::from_nanos(granted.parse()?),
                released: Duration::from_nanos(released.parse()?),
            });
        }
        let status = self.process.wait().await?;
        ensure!(status.success(), "a process failed: {status}");
        Ok((holds, sent))
    }
}
