//! Runs interleaved rounds: in each round the stores take turns, every other round in reverse
//! order. Each finished round is kept.
//!
//! Gives a reason for each missing figure.

use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use distlock_cli::program::Outcome;
use distlock_report::{
    Arm, LockerSubject, Options, Sample, Workload,
    compare::{Figure, Measure},
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
    pub(super) values: Vec<(Measure, f64)>,
    /// Figures for other experiments that the same round gave.
    pub(super) beside: Vec<(String, Measure, f64)>,
    /// The other experiments that failed in the same round, with the reason.
    pub(super) failed_beside: Vec<(String, String)>,
    /// The reason why the figures do not count, if the round failed.
    pub(super) error: Option<String>,
    /// The sample from which the figures were computed.
    pub(super) sample: Option<Sample>,
    /// The processor time of the round.
    pub(super) cpu: Option<CpuTicks>,
}

impl RoundResult {
    /// The result of a round that failed.
    pub(super) fn failed(error: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            ..Self::default()
        }
    }

    /// The result of this round for one of the other experiments.
    fn for_experiment(&self, experiment: &str) -> Self {
        let values = self.beside.iter().filter(|(key, ..)| key == experiment);
        let failed = self.failed_beside.iter().find(|(key, _)| key == experiment);
        Self {
            values: values
                .map(|(_, measure, value)| (*measure, *value))
                .collect(),
            error: self.error.clone().or(failed.map(|(_, why)| why.clone())),
            ..Self::default()
        }
    }

    /// The other experiments of this round.
    fn experiments_beside(&self) -> impl Iterator<Item = &String> {
        let measured = self.beside.iter().map(|(key, ..)| key);
        measured.chain(self.failed_beside.iter().map(|(key, _)| key))
    }
}

/// The time that a round may take beyond the expected time. A round that takes longer counts as
/// hung.
const HANG_LIMIT: Duration = Duration::from_secs(25);

impl ComparisonRun {
    /// Runs all rounds of an experiment, one store at a time. Rounds that an earlier run kept are
    /// not run again.
    pub(super) async fn interleave<F>(
        &mut self,
        key: &str,
        rounds: u32,
        expected: Duration,
        turn: impl Fn(&StoreUnderTest, u32) -> Option<F>,
    ) -> Outcome<()>
    where
        F: Future<Output = RoundResult>,
    {
        let mut results: Vec<Vec<RoundResult>> = vec![Vec::new(); self.stores.len()];
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
                    self.progress.finish_step();
                    continue;
                }
                if self.stores[at].is_alive()
                    && let Some(running) = turn(&self.stores[at], round)
                {
                    let before = Reading::now();
                    let mut done = within(expected + HANG_LIMIT, running)
                        .await
                        .unwrap_or_else(|| RoundResult::failed("it hung"));
                    if let (Some(before), Some(after)) = (before, Reading::now()) {
                        let cpu = before.ticks_until(after);
                        done.cpu = Some(cpu);
                        self.loads.add(key, round, cpu);
                    }
                    if let Some(error) = &done.error {
                        self.stop_dead_store(at, key, round, error).await;
                    } else {
                        self.kept.save(&name, &done)?;
                    }
                    results[at].push(done);
                }
                self.progress.finish_step();
            }
        }
        let beside: BTreeSet<String> = results
            .iter()
            .flatten()
            .flat_map(RoundResult::experiments_beside)
            .cloned()
            .collect();
        for (at, turns) in results.iter().enumerate() {
            let store = self.stores[at].key().to_owned();
            self.collect(&store, key, turns);
            for key in &beside {
                let turns: Vec<_> = turns.iter().map(|turn| turn.for_experiment(key)).collect();
                self.collect(&store, key, &turns);
            }
        }
        Ok(())
    }

    /// Collects the figures of one experiment of a store, or the reason why it has none.
    fn collect(&mut self, store: &str, key: &str, turns: &[RoundResult]) {
        if let Some(why) = turns.iter().find_map(|turn| turn.error.clone()) {
            self.missing.push((store.to_owned(), key.to_owned(), why));
        }
        self.figures.extend(figures_of(store, key, turns));
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
        let (mut arms, mut lockers) = (Vec::new(), Vec::new());
        for candidate in &self.stores {
            arms.push(match candidate.opener().open_client().await {
                Ok(store) => {
                    let subject = LockerSubject::new(store.backend());
                    lockers.push(subject.locker().clone());
                    Some(Arm::new(candidate.key(), subject))
                }
                Err(_) => None,
            });
        }
        let arms = Arc::new(arms);
        let keys: Vec<String> = self.stores.iter().map(|it| it.key().to_owned()).collect();
        for experiment in experiments {
            self.progress
                .begin_part(&format!("measuring {}", experiment.key));
            let plan = self.plan.clone();
            let expected = plan.time + plan.warmup;
            let (arms, keys) = (Arc::clone(&arms), keys.clone());
            let (workload, callers) = (experiment.workload, experiment.callers);
            self.interleave(
                &experiment.key,
                plan.rounds,
                expected,
                move |store, round| {
                    let at = keys.iter().position(|key| key == store.key())?;
                    let (arms, plan) = (Arc::clone(&arms), plan.clone());
                    Some(async move {
                        match arms.get(at).and_then(Option::as_ref) {
                            Some(arm) => {
                                workload_round(
                                    arm,
                                    workload,
                                    callers,
                                    round,
                                    plan.warmup,
                                    plan.time,
                                )
                                .await
                            }
                            None => RoundResult::failed("it could not be opened again"),
                        }
                    })
                },
            )
            .await?;
        }
        for locker in lockers {
            within(HANG_LIMIT, locker.close()).await;
        }
        Ok(())
    }
}

/// Runs one round of a workload: a warm-up that is not counted, and then the measured part.
pub(super) async fn workload_round(
    arm: &Arm,
    workload: Workload,
    callers: u32,
    round: u32,
    warmup: Duration,
    time: Duration,
) -> RoundResult {
    let options = |time| {
        Options::default()
            .concurrency(callers)
            .rounds(1)
            .warmup(Duration::ZERO)
            .duration(time)
    };
    let sample = async {
        measure_round(arm, workload, round, &options(warmup)).await?;
        let before = processor_time();
        let sample = measure_round(arm, workload, round, &options(time)).await?;
        Ok::<_, distlock::Error>((sample, processor_time().saturating_sub(before)))
    };
    match sample.await {
        Ok((sample, spent)) => result_of_sample(sample, spent),
        Err(error) => RoundResult::failed(error.to_string()),
    }
}

/// The processor time that this process has used so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(nanos)
}

/// The result of a round from its sample and the processor time that it took.
fn result_of_sample(sample: Sample, spent: Duration) -> RoundResult {
    if sample.errors > 0 {
        return RoundResult {
            error: Some(format!(
                "{} cycles failed, the first: {}",
                sample.errors,
                sample.first_error.as_deref().unwrap_or("unknown")
            )),
            sample: Some(sample),
            ..RoundResult::default()
        };
    }
    let cycles = as_f64(sample.cycles()).max(1.0);
    let mut values = vec![
        (Measure::Rate, sample.cycles_per_second()),
        (Measure::Cpu, spent.as_secs_f64() * 1e6 / cycles),
    ];
    if sample.latencies.count() > 0 {
        let us = |share| sample.latencies.quantile(share).as_secs_f64() * 1e6;
        values.push((Measure::P50, us(0.5)));
        values.push((Measure::P99, us(0.99)));
    }
    if let Some(statements) = sample.statements {
        values.push((Measure::Statements, as_f64(statements) / cycles));
    }
    if sample.workload == Workload::Contended
        && let Some(unfairness) = sample.unfairness()
    {
        values.push((Measure::Unfairness, unfairness));
    }
    RoundResult {
        values,
        sample: Some(sample),
        ..RoundResult::default()
    }
}

/// The figures of one store in one experiment, one figure per measure. If a round failed, the
/// figures contain the reason and count as missing.
fn figures_of(store: &str, experiment: &str, turns: &[RoundResult]) -> Vec<Figure> {
    let missing = turns.iter().find_map(|turn| turn.error.clone());
    let mut figures: Vec<Figure> = Vec::new();
    for (measure, value) in turns.iter().flat_map(|turn| &turn.values) {
        match figures.iter_mut().find(|it| it.measure == *measure) {
            Some(figure) => figure.rounds.push(*value),
            None => figures.push(Figure {
                store: store.to_owned(),
                experiment: experiment.to_owned(),
                measure: *measure,
                rounds: vec![*value],
                missing: missing.clone(),
            }),
        }
    }
    figures
}

/// The key of a store, an experiment, and the reason why the store has no figure there.
pub(super) type Missing = (String, String, String);

/// Adds the reason wherever a store has no figure and another store has one: the store stopped
/// answering, or it failed in that experiment.
pub(super) fn fill_gaps(
    figures: &mut Vec<Figure>,
    stores: &[StoreUnderTest],
    failures: &[Missing],
) {
    let mut wanted: Vec<(String, Measure, usize)> = Vec::new();
    for figure in figures.iter() {
        match wanted.iter_mut().find(|(experiment, measure, _)| {
            *experiment == figure.experiment && *measure == figure.measure
        }) {
            Some((.., most)) => *most = (*most).max(figure.rounds.len()),
            None => wanted.push((
                figure.experiment.clone(),
                figure.measure,
                figure.rounds.len(),
            )),
        }
    }
    for candidate in stores {
        for (experiment, measure, most) in &wanted {
            let failed = failures
                .iter()
                .find(|(store, failed, _)| store == candidate.key() && failed == experiment)
                .map(|(.., why)| why);
            let Some(why) = failed.or(candidate.facts.stopped.as_ref()) else {
                continue;
            };
            let own = figures.iter_mut().find(|it| {
                it.store == candidate.key()
                    && it.experiment == *experiment
                    && it.measure == *measure
            });
            match own {
                Some(figure) if figure.rounds.len() < *most => {
                    figure.missing.get_or_insert_with(|| why.clone());
                }
                Some(_) => {}
                None => figures.push(Figure {
                    store: candidate.key().to_owned(),
                    experiment: experiment.clone(),
                    measure: *measure,
                    rounds: Vec::new(),
                    missing: Some(why.clone()),
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_fails_leaves_the_figures_of_the_other_ways_of_its_round() {
        let round = RoundResult {
            beside: vec![("counters-lock".into(), Measure::Rate, 7.0)],
            failed_beside: vec![("counters-optimistic".into(), "gave up".into())],
            ..RoundResult::default()
        };
        let experiments: Vec<_> = round.experiments_beside().collect();
        assert_eq!(experiments, ["counters-lock", "counters-optimistic"]);
        let [lock, optimistic] = ["counters-lock", "counters-optimistic"].map(|experiment| {
            let turn = round.for_experiment(experiment);
            (turn.values, turn.error)
        });
        assert_eq!(lock, (vec![(Measure::Rate, 7.0)], None));
        assert_eq!(optimistic, (vec![], Some("gave up".into())));
    }
}
