//! Measures the recipes as `distlock-lab bench` does with the workloads `counters` and `cache`.

use std::time::Duration;

use anyhow::anyhow;
use distlock_cli::program::Outcome;
use distlock_report::{Options, Report, compare::Measure};

use super::{plan::ComparisonRun, rounds::RoundResult};
use crate::bench::{cache, counters};

/// The most ways of counting that a store supports.
const MAX_WAYS: u32 = 4;
/// The number of ways of caching: with the guard and without.
const CACHES: u32 = 2;
/// The extra time of a round for opening connections.
const EXTRA_TIME: Duration = Duration::from_secs(10);

impl ComparisonRun {
    /// Measures unread counters, in each way that the store supports.
    pub(super) async fn measure_counters(&mut self) -> Outcome<()> {
        self.progress.begin_part("measuring unread counters");
        let options = self.one_round();
        let expected = (options.duration + options.warmup) * MAX_WAYS + EXTRA_TIME;
        self.interleave("counters", self.plan.rounds, expected, |store, _| {
            let (target, store, options) =
                (store.target.clone(), store.store.clone(), options.clone());
            Some(async move {
                let report = counters::measure_ways(&target, &store, &options).await;
                let report = report.map_err(|failure| anyhow!("{failure}"))?;
                Ok(round_result("counters", &report))
            })
        })
        .await
    }

    /// Measures a hot value of a cache, with the guard and without.
    pub(super) async fn measure_caches(&mut self) -> Outcome<()> {
        self.progress.begin_part("measuring a cache");
        let options = self.one_round();
        let expected = (options.duration + options.warmup) * CACHES + EXTRA_TIME;
        self.interleave("cache", self.plan.rounds, expected, |store, _| {
            let (target, store, options) =
                (store.target.clone(), store.store.clone(), options.clone());
            Some(async move {
                let report = cache::measure_ways(&target, &store, &options).await;
                let report = report.map_err(|failure| anyhow!("{failure}"))?;
                Ok(round_result("cache", &report))
            })
        })
        .await
    }

    /// The options of one round.
    fn one_round(&self) -> Options {
        Options {
            rounds: 1,
            duration: self.plan.time,
            warmup: self.plan.warmup,
            ..Options::default()
        }
    }
}

/// The result of a round. The figures or the failure of each arm go to an experiment of its own.
fn round_result(experiment: &str, report: &Report) -> RoundResult {
    let mut result = RoundResult::default();
    for it in &report.figures {
        let experiment = format!("{experiment}-{}", it.arm);
        if it.errors > 0 {
            let first = it.first_error.as_deref().unwrap_or("unknown");
            let why = format!("{} calls failed, the first: {first}", it.errors);
            result.failed.push((experiment, why));
            continue;
        }
        for (measure, value) in [
            (Measure::Rate, it.cycles_per_second.map(|it| it.median)),
            (Measure::P99, it.p99_us.map(|it| it.median)),
            (Measure::Retries, it.retries_per_cycle),
            (Measure::Loads, it.loads_per_second),
        ] {
            let value = value.map(|value| (experiment.clone(), measure, value));
            result.values.extend(value);
        }
    }
    result
}
