//! Measures one lock that several processes want: the share of each, and the longest wait.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::Reach;
use distlock_cli::program::Outcome;
use distlock_report::{Report, compare::Measure};
use futures_util::future::try_join_all;

use super::{plan::ComparisonRun, rounds::RoundResult};
use crate::counts::as_f64;

const PROCESSES: usize = 4;

/// The time for which each process keeps the lock. It is long, so that a process that starts or
/// ends a moment before the others has no advantage.
const HOLD: Duration = Duration::from_millis(10);

impl ComparisonRun {
    /// Measures processes of this very program that compete for one lock, in rounds.
    pub(super) async fn measure_competition(&mut self) -> Outcome<()> {
        self.progress
            .begin_part("counting how often each process gets the lock");
        let time = self.plan.time.max(Duration::from_secs(1));
        let key = format!("processes-{PROCESSES}");
        let expected = time + Duration::from_secs(10);
        self.interleave(&key, self.plan.rounds, expected, |store, _| {
            // A store that lives in one process has no competing processes.
            let reach = store.store.backend().capabilities().reach;
            let url = (reach != Reach::Process).then(|| store.target.reveal_url())?;
            Some(async move {
                competition_round(&url, time)
                    .await
                    .unwrap_or_else(|error| RoundResult::failed(format!("{error:#}")))
            })
        })
        .await
    }
}

/// Runs all processes for one round, and computes its figures.
async fn competition_round(url: &str, time: Duration) -> Result<RoundResult> {
    let name = format!("bench:processes:{:08x}", fastrand::u32(..));
    let all = (0..PROCESSES).map(|_| run_competitor(url, &name, time));
    let processes = try_join_all(all).await?;
    let longest = processes.iter().map(|it| it.longest).max();
    let longest = longest.unwrap_or_default().saturating_sub(HOLD);
    let cycles: Vec<u64> = processes.iter().map(|it| it.cycles).collect();
    let most = cycles.iter().max().copied().unwrap_or_default();
    let least = cycles.iter().min().copied().unwrap_or_default();
    let sum = cycles.iter().sum::<u64>();
    let rates = processes.iter().map(|it| it.rate);
    Ok(RoundResult {
        values: vec![
            (Measure::Rate, rates.sum()),
            (Measure::Unfairness, as_f64(most) / as_f64(least)),
            (Measure::LeastShare, as_f64(least) / as_f64(sum) * 100.0),
            (Measure::MostShare, as_f64(most) / as_f64(sum) * 100.0),
            (Measure::LongestWait, longest.as_secs_f64() * 1e6),
        ],
        ..RoundResult::default()
    })
}

/// The figures of one process.
struct CompetitorResult {
    cycles: u64,
    /// Cycles per second of the process's own time, which ends with its last cycle.
    rate: f64,
    /// The longest time from the request for the lock until the answer to its release.
    longest: Duration,
}

/// Runs one process of `distlock-lab bench`, and reads its report.
async fn run_competitor(url: &str, name: &str, time: Duration) -> Result<CompetitorResult> {
    let output = tokio::process::Command::new(std::env::current_exe()?)
        .args([
            "bench",
            "--workload",
            "contended",
            "--rounds",
            "1",
            "--json",
        ])
        .args(["--concurrency", "1", "--name", name])
        .args(["--hold", &format!("{}ms", HOLD.as_millis())])
        .args(["--seconds", &time.as_secs_f64().to_string()])
        // The URL may hold a secret, and every user can read arguments, so it is passed as a
        // variable.
        .env("DISTLOCK_BACKEND", url)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    ensure!(
        output.status.success(),
        "a process failed: {}",
        output.status
    );
    let report: Report = serde_json::from_slice(&output.stdout).context("what a process says")?;
    let sample = report
        .samples
        .first()
        .context("a process without a round")?;
    // The measuring engine runs at least one cycle for every caller.
    ensure!(sample.cycles() > 0, "a process without a cycle");
    Ok(CompetitorResult {
        cycles: sample.cycles(),
        rate: sample.cycles_per_second(),
        longest: sample.latencies.max(),
    })
}
