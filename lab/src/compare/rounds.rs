//! Runs interleaved rounds: in each round the stores take turns, every other round in reverse
//! order. Each finished round is kept.
//!
//! Gives a reason for each missing figure.

use std::{collections::BTreeSet, future::Future, time::Duration};

use anyhow::{Context as _, Result};
use distlock::Locker;
use distlock_cli::program::{Failure, Outcome, code};
use distlock_report::{
    Arm, LockerSubject, Options, Sample, Workload,
    compare::{Figure, Measure, Missing},
    measure_round,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{
    cpu::{CpuTicks, Reading},
    plan::{ComparisonRun, Experiment, within},
    stores::{StoreUnderTest, check_answers},
};
use crate::counts::as_f64;

/// The result of one round of one store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct RoundResult {
    /// The experiments, and their figures. One round may serve several experiments.
    pub(super) values: Vec<(String, Measure, f64)>,
    /// The experiments that failed while others of the same round did not, with the reason.
    pub(super) failed: Vec<(String, String)>,
    /// The sample from which the figures were computed.
    pub(super) sample: Option<Sample>,
    /// The processor time of the round.
    cpu: Option<CpuTicks>,
}

impl RoundResult {
    /// The figures of one experiment.
    pub(super) fn of(experiment: &str, values: impl IntoIterator<Item = (Measure, f64)>) -> Self {
        let values = values.into_iter();
        Self {
            values: values
                .map(|(measure, value)| (experiment.to_owned(), measure, value))
                .collect(),
            ..Self::default()
        }
    }
}

/// The time that a round may take beyond the expected time. A round that takes longer counts as
/// hung.
const HANG_LIMIT: Duration = Duration::from_secs(25);

impl ComparisonRun {
    /// Runs all rounds of an experiment, one store at a time. Rounds that an earlier run kept are
    /// not run again. `turn` gives `None` for a store that has no such round.
    pub(super) async fn interleave<F>(
        &mut self,
        key: &str,
        rounds: u32,
        expected: Duration,
        turn: impl Fn(&StoreUnderTest, u32) -> Option<F>,
    ) -> Outcome<()>
    where
        F: Future<Output = Result<RoundResult>>,
    {
        let mut results: Vec<Vec<RoundResult>> = vec![Vec::new(); self.stores.len()];
        let mut failures: Vec<Option<String>> = vec![None; self.stores.len()];
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..self.stores.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for at in order {
                let name = format!("{key}.{}.{round}.json", self.stores[at].key());
                if let Some(kept) = self.kept.load::<RoundResult>(&name) {
                    if let Some(cpu) = kept.cpu {
                        self.loads.add(key, round, cpu);
                    }
                    results[at].push(kept);
                } else if let Some(running) = turn(&self.stores[at], round) {
                    match self.run_turn(at, key, round, expected, running).await {
                        Ok(done) => {
                            self.kept.save(&name, &done)?;
                            results[at].push(done);
                        }
                        Err(why) => failures[at] = failures[at].take().or(Some(why)),
                    }
                }
                self.progress.finish_step();
            }
        }
        self.collect(key, &results, &failures);
        Ok(())
    }

    /// Runs one round of one store. The error is the reason why the store has no figure.
    async fn run_turn(
        &mut self,
        at: usize,
        key: &str,
        round: u32,
        expected: Duration,
        running: impl Future<Output = Result<RoundResult>>,
    ) -> Result<RoundResult, String> {
        if let Some(why) = &self.stores[at].facts.stopped {
            return Err(why.clone());
        }
        let before = Reading::now();
        let done = within(expected + HANG_LIMIT, running).await;
        let cpu = before.zip(Reading::now());
        let cpu = cpu.map(|(before, after)| before.ticks_until(after));
        if let Some(cpu) = cpu {
            self.loads.add(key, round, cpu);
        }
        let done = match done {
            Some(Ok(done)) => Ok(RoundResult { cpu, ..done }),
            Some(Err(error)) => Err(format!("{error:#}")),
            None => Err("it hung".to_owned()),
        };
        if let Err(why) = &done {
            self.stop_dead_store(at, key, round, why).await;
        }
        done
    }

    /// Collects the figures of all stores, and the reasons why a store has none.
    fn collect(&mut self, key: &str, results: &[Vec<RoundResult>], failures: &[Option<String>]) {
        let values = results.iter().flatten().flat_map(|it| &it.values);
        let mut experiments: BTreeSet<&str> = values.map(|(key, ..)| key.as_str()).collect();
        if experiments.is_empty() {
            experiments.insert(key);
        }
        for ((store, turns), failure) in self.stores.iter().zip(results).zip(failures) {
            let new = self.figures.len();
            for (experiment, measure, value) in turns.iter().flat_map(|it| &it.values) {
                let mut figures = self.figures[new..].iter_mut();
                match figures.find(|it| it.experiment == *experiment && it.measure == *measure) {
                    Some(figure) => figure.rounds.push(*value),
                    None => self.figures.push(Figure {
                        store: store.key().to_owned(),
                        experiment: experiment.clone(),
                        measure: *measure,
                        rounds: vec![*value],
                    }),
                }
            }
            let single = turns.iter().flat_map(|it| &it.failed);
            let single = single.map(|(experiment, why)| (experiment.as_str(), why));
            let whole = failure.iter();
            let whole = whole.flat_map(|why| experiments.iter().map(move |it| (*it, why)));
            for (experiment, why) in single.chain(whole) {
                let mut known = self.missing.iter();
                if !known.any(|it| it.store == store.key() && it.experiment == experiment) {
                    self.missing.push(Missing {
                        store: store.key().to_owned(),
                        experiment: experiment.to_owned(),
                        why: why.clone(),
                    });
                }
            }
        }
    }

    /// Handles a failed round. If the store itself does not answer any more, the store takes no
    /// further part in the run.
    async fn stop_dead_store(&mut self, at: usize, key: &str, round: u32, error: &str) {
        let candidate = &mut self.stores[at];
        let Err(said) = check_answers(&candidate.store).await else {
            return;
        };
        let why = format!("in round {} of {key}: {error} ({said})", round + 1);
        self.progress.print_note(&format!(
            "{} died, and takes no further part: {why}",
            candidate.facts.name
        ));
        candidate.facts.stopped = Some(why);
    }

    /// Measures all workloads, with one locker per store.
    pub(super) async fn measure_workloads(&mut self, experiments: &[Experiment]) -> Outcome<()> {
        let arms = Arms::open(&self.stores).await;
        // The clients are open, as at a loss in the middle of their work.
        for store in &mut self.stores {
            let lost = store.lose_member();
            lost.map_err(|error| Failure::new(code::UNAVAILABLE, format!("{error:#}")))?;
        }
        for experiment in experiments {
            let part = format!("measuring {}", experiment.key);
            self.progress.begin_part(&part);
            self.measure_arms(&arms, experiment).await?;
        }
        arms.close().await;
        Ok(())
    }

    /// Measures one workload on the arms.
    pub(super) async fn measure_arms(
        &mut self,
        arms: &Arms,
        experiment: &Experiment,
    ) -> Outcome<()> {
        let (rounds, warmup, time) = (self.plan.rounds, self.plan.warmup, self.plan.time);
        self.interleave(&experiment.key, rounds, warmup + time, |store, round| {
            let arm = arms.of(store);
            Some(async move {
                let arm = arm.context("its client could not be opened, or failed before")?;
                workload_round(arm, experiment, round, warmup, time).await
            })
        })
        .await
    }
}

/// An arm and its locker for each store that could be opened once more.
pub(super) struct Arms(Vec<(Locker, Arm)>);

impl Arms {
    /// Opens a client of each store.
    pub(super) async fn open(stores: &[StoreUnderTest]) -> Self {
        let mut arms = Vec::new();
        for store in stores.iter().filter(|it| it.is_alive()) {
            if let Ok(client) = store.opener().open_client().await {
                let subject = LockerSubject::new(client.backend());
                let locker = subject.locker().clone();
                arms.push((locker, Arm::new(store.key(), subject)));
            }
        }
        Self(arms)
    }

    fn of(&self, store: &StoreUnderTest) -> Option<&Arm> {
        let mut arms = self.0.iter();
        let (_, arm) = arms.find(|(_, arm)| arm.name() == store.key())?;
        Some(arm)
    }

    /// Leaves a store out. It then fails in all further experiments with these arms.
    pub(super) fn remove(&mut self, store: &StoreUnderTest) {
        self.0.retain(|(_, arm)| arm.name() != store.key());
    }

    pub(super) async fn close(self) {
        for (locker, _) in self.0 {
            within(HANG_LIMIT, locker.close()).await;
        }
    }
}

/// Runs one round of a workload: a warm-up that is not counted, and then the measured part.
pub(super) async fn workload_round(
    arm: &Arm,
    experiment: &Experiment,
    round: u32,
    warmup: Duration,
    time: Duration,
) -> Result<RoundResult> {
    let workload = experiment.workload;
    let options = |duration| Options {
        concurrency: Some(experiment.callers),
        rounds: 1,
        warmup: Duration::ZERO,
        duration,
        ..Options::default()
    };
    measure_round(arm, workload, round, &options(warmup)).await?;
    let before = processor_time();
    let sample = measure_round(arm, workload, round, &options(time)).await?;
    let spent = processor_time().saturating_sub(before);
    if sample.errors > 0 {
        let first = sample.first_error.as_deref().unwrap_or("unknown");
        anyhow::bail!("{} cycles failed, the first: {first}", sample.errors);
    }
    let cycles = as_f64(sample.cycles()).max(1.0);
    let us = |share| sample.latencies.quantile(share).as_secs_f64() * 1e6;
    let times = [(Measure::P50, us(0.5)), (Measure::P99, us(0.99))];
    let has_times = sample.latencies.count() > 0;
    let statements = sample.statements.map(|it| as_f64(it) / cycles);
    let unfairness = sample.unfairness();
    let unfairness = unfairness.filter(|_| workload == Workload::Contended);
    let mut values = vec![
        (Measure::Rate, sample.cycles_per_second()),
        (Measure::Cpu, spent.as_secs_f64() * 1e6 / cycles),
    ];
    values.extend(times.into_iter().filter(|_| has_times));
    values.extend(statements.map(|it| (Measure::Statements, it)));
    values.extend(unfairness.map(|it| (Measure::Unfairness, it)));
    Ok(RoundResult {
        sample: Some(sample),
        ..RoundResult::of(&experiment.key, values)
    })
}

/// The processor time that this process has used so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}
