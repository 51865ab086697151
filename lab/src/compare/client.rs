//! Measures the costs of a client itself: bytes on the wire, and the memory of a process that only
//! takes and releases locks.

use std::{process::Stdio, time::Duration};

use distlock_report::{Arm, LockerSubject, Workload, compare::Measure};

use super::{
    patience::pause,
    rounds::{RoundResult, workload_round},
    run::ComparisonRun,
    wire::CountedConnection,
};
use crate::counts::as_f64;
use distlock_cli::program::{self, Outcome};

/// The number of callers in the process whose memory is measured.
const CALLERS: u32 = 64;

impl ComparisonRun {
    /// Measures bytes per cycle on servers that this run started: the client connects to them
    /// through a counter.
    pub(super) async fn measure_traffic(&mut self) -> Outcome<()> {
        self.progress.begin_part("counting bytes");
        let time = self.plan.time;
        self.interleave("traffic", 1, time, |store, _| {
            let wire = CountedConnection::to_server_of(store)?;
            Some(async move {
                traffic_round(wire, time)
                    .await
                    .unwrap_or_else(|error| RoundResult::failed(format!("{error:#}")))
            })
        })
        .await
    }

    /// Measures the peak memory of a process with many callers.
    pub(super) async fn measure_memory(&mut self) -> Outcome<()> {
        self.progress.begin_part("measuring a process of its own");
        let time = self.plan.time.max(Duration::from_millis(500));
        let key = format!("process-{CALLERS}");
        self.interleave(&key, 1, time + Duration::from_secs(10), |store, _| {
            let url = store.target.reveal_url();
            Some(async move {
                memory_round(&url, time)
                    .await
                    .unwrap_or_else(|error| RoundResult::failed(error.to_string()))
            })
        })
        .await
    }
}

/// Counts the bytes of one caller in one round.
async fn traffic_round(wire: CountedConnection, time: Duration) -> anyhow::Result<RoundResult> {
    let (store, counter) = wire.open().await?;
    let subject = LockerSubject::new(store.backend());
    let locker = subject.locker().clone();
    let arm = Arm::new("traffic", subject);
    // The first round opens connections and prepares statements. Its bytes are not counted.
    workload_round(
        &arm,
        Workload::Uncontended,
        1,
        0,
        Duration::from_millis(1),
        time / 4,
    )
    .await;
    let before = counter.bytes();
    let turn = workload_round(
        &arm,
        Workload::Uncontended,
        1,
        0,
        Duration::from_millis(1),
        time,
    )
    .await;
    let moved = counter.bytes().saturating_sub(before);
    locker.close().await;
    store.close().await;
    Ok(RoundResult {
        values: turn
            .sample
            .as_ref()
            .filter(|sample| sample.cycles() > 0 && turn.error.is_none())
            .map(|sample| (Measure::Bytes, as_f64(moved) / as_f64(sample.cycles())))
            .into_iter()
            .collect(),
        ..RoundResult::default()
    })
}

/// Runs many callers in a process of this very program, and reads the memory of that process.
async fn memory_round(url: &str, time: Duration) -> std::io::Result<RoundResult> {
    let mut process = tokio::process::Command::new(std::env::current_exe()?)
        .args(["bench", "--workload", "independent", "--rounds", "1"])
        .args(["--concurrency", &CALLERS.to_string()])
        .args(["--seconds", &time.as_secs_f64().to_string()])
        // The URL may hold a secret, and every user can read arguments, so it is passed as a
        // variable.
        .env("DISTLOCK_BACKEND", url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let id = process.id().unwrap_or_default();
    let mut peak = 0.0_f64;
    loop {
        // `VmHWM` is the peak so far. The last reading before the end is the result.
        if let Some(kib) = program::memory_kib(id, "VmHWM:") {
            peak = peak.max(as_f64(kib));
        }
        match process.try_wait()? {
            Some(ended) if ended.success() => break,
            Some(ended) => return Ok(RoundResult::failed(format!("the process failed: {ended}"))),
            None => pause(Duration::from_millis(20)).await,
        }
    }
    Ok(RoundResult {
        values: vec![(Measure::Memory, peak)],
        ..RoundResult::default()
    })
}
