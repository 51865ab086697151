//! Measures one lock that several processes want: the share of each, and the longest wait.

use std::{process::Stdio, time::Duration};

use anyhow::{Context as _, Result, ensure};
use distlock::Reach;
use distlock_cli::program::Outcome;
use distlock_report::{Report, Sample, compare::Measure};
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
            let key = &key;
            Some(async move { Ok(RoundResult::of(key, competition_round(&url, time).await?)) })
        })
        .await
    }
}

/// Runs all processes for one round, and computes its figures.
async fn competition_round(url: &str, time: Duration) -> Result<[(Measure, f64); 5]> {
    let name = format!("bench:processes:{:08x}", fastrand::u32(..));
    let hold = format!("{}ms", HOLD.as_millis());
    let seconds = time.as_secs_f64().to_string();
    let compete = || async {
        let fixed = "bench --workload contended --rounds 1 --concurrency 1".split(' ');
        let given = ["--name", &name, "--hold", &hold, "--seconds", &seconds];
        let arguments: Vec<&str> = fixed.chain(given).collect();
        // The URL may hold a secret, and every user can read arguments, so it is passed as a
        // variable.
        let variable = Some(("DISTLOCK_BACKEND", url));
        let report = report_of_process(&arguments, variable).await?;
        let sample = report.samples.into_iter().next();
        let sample = sample.context("a process without a round")?;
        // The measuring engine runs at least one cycle for every caller.
        ensure!(sample.cycles() > 0, "a process without a cycle");
        anyhow::Ok(sample)
    };
    let samples = try_join_all((0..PROCESSES).map(|_| compete())).await?;
    // The longest time from the request for the lock until the answer to its release.
    let longest = samples.iter().map(|it| it.latencies.max()).max();
    let longest = longest.unwrap_or_default().saturating_sub(HOLD);
    let cycles: Vec<u64> = samples.iter().map(Sample::cycles).collect();
    let [most, least] =
        [cycles.iter().max(), cycles.iter().min()].map(|it| it.map_or(0.0, |it| as_f64(*it)));
    let sum = as_f64(cycles.iter().sum());
    Ok([
        // Each rate is that of the process's own time, which ends with its last cycle.
        (
            Measure::Rate,
            samples.iter().map(Sample::cycles_per_second).sum(),
        ),
        (Measure::Unfairness, most / least),
        (Measure::LeastShare, least / sum * 100.0),
        (Measure::MostShare, most / sum * 100.0),
        (Measure::LongestWait, longest.as_secs_f64() * 1e6),
    ])
}

/// Runs a measuring command as a process of this very program, and reads its report. `variable` is
/// set for the process.
pub(super) async fn report_of_process(
    arguments: &[&str],
    variable: Option<(&str, &str)>,
) -> Result<Report> {
    let output = tokio::process::Command::new(std::env::current_exe()?)
        .args(arguments)
        .arg("--json")
        .envs(variable)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let command = arguments[0];
    ensure!(
        output.status.success(),
        "distlock-lab {command} failed: {}",
        output.status
    );
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what distlock-lab {command} says"))
}
