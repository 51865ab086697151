//! The loops: arms take turns, tasks run cycles until the time is over.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use distlock_core::{Error, ErrorKind, Result};
use tokio::task::{JoinSet, coop::consume_budget};

use crate::{
    measure::arm::{Arm, Counters, Subject},
    measure::timing::{keep, nanos, now, pause_after_error},
    measure::workload::{Options, Workload},
    results::report::Report,
    results::sample::{Latencies, Sample},
};

/// Runs one workload on every arm, taking turns, in rounds. The first arm is what the others are compared with.
///
/// Every run has lock names of its own, which start with `bench:`, unless the options name the lock. A store that fails makes no error here: failed cycles
/// are counted in the report.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when the options do not fit the workload, or there is no arm, or two have one name.
///
/// # Cancel safety
/// Safe to drop: running cycles are aborted, and what they held is given back as the subject does on drop.
///
/// # Panics
/// When a subject panics.
pub async fn measure(arms: &[Arm], workload: Workload, options: &Options) -> Result<Report> {
    let callers = options.callers(workload)?;
    check_names(arms)?;
    let run = format!("bench:{:08x}", fastrand::u32(..));
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        // Every other round goes backwards, so that no arm always runs after the same neighbour.
        let mut turn: Vec<&Arm> = arms.iter().collect();
        if round % 2 == 1 {
            turn.reverse();
        }
        for arm in turn {
            let round = Round {
                arm: arm.name().to_owned(),
                workload,
                number: round,
                callers,
                names: run.clone(),
                shared: options.name.clone(),
                hold: options.hold,
                warmup: options.warmup,
                time: options.duration / options.rounds,
            };
            samples.push(arm.run(round).await);
        }
    }
    Ok(Report::new(samples))
}

/// Runs one round of one arm, for those who arrange the turns themselves. The round lasts as long as one of the options'
/// rounds does.
///
/// # Errors
/// As [`measure`].
///
/// # Cancel safety
/// As [`measure`].
///
/// # Panics
/// When the subject panics.
pub async fn measure_round(
    arm: &Arm,
    workload: Workload,
    number: u32,
    options: &Options,
) -> Result<Sample> {
    let callers = options.callers(workload)?;
    let round = Round {
        arm: arm.name().to_owned(),
        workload,
        number,
        callers,
        names: format!("bench:{:08x}", fastrand::u32(..)),
        shared: options.name.clone(),
        hold: options.hold,
        warmup: options.warmup,
        time: options.duration / options.rounds,
    };
    Ok(arm.run(round).await)
}

fn check_names(arms: &[Arm]) -> Result<()> {
    let problem = match arms {
        [] => "there is nothing to measure".to_owned(),
        _ => {
            match (1..arms.len()).find(|&i| arms[..i].iter().any(|a| a.name() == arms[i].name())) {
                Some(i) => format!("two arms are named \"{}\"", arms[i].name()),
                None => return Ok(()),
            }
        }
    };
    Err(Error::new(ErrorKind::InvalidArgument, problem))
}

/// What one arm does in its turn.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    arm: String,
    workload: Workload,
    number: u32,
    callers: u32,
    names: String,
    /// The lock of a workload that shares one, where it was named.
    shared: Option<String>,
    /// How long each lock is kept.
    hold: Duration,
    warmup: Duration,
    time: Duration,
}

impl Round {
    fn name_of(&self, task: u32) -> String {
        match &self.shared {
            Some(name) if self.workload.shares_one_name() => name.clone(),
            None if self.workload.shares_one_name() => format!("{}:shared", self.names),
            _ => format!("{}:{task:05}", self.names),
        }
    }
}

pub(crate) async fn run_round<S: Subject>(subject: Arc<S>, round: Round) -> Sample {
    if !round.warmup.is_zero() {
        run_tasks(&subject, &round, round.warmup).await;
    }
    let before = subject.counters();
    let start = now();
    let tallies = run_tasks(&subject, &round, round.time).await;
    let Counters {
        operations,
        statements,
        retries,
        loads,
    } = subject.counters().since(before);
    let end = tallies.iter().map(|t| t.ended).max().unwrap_or(start);
    let mut latencies = Latencies::new();
    tallies.iter().for_each(|t| latencies.add(&t.latencies));
    Sample {
        arm: round.arm,
        workload: round.workload,
        round: round.number,
        elapsed_ns: nanos(end.duration_since(start)),
        cycles_per_task: tallies.iter().map(|t| t.cycles).collect(),
        errors: tallies.iter().map(|t| t.errors).sum(),
        first_error: tallies.into_iter().find_map(|t| t.first_error),
        operations,
        statements,
        retries,
        loads,
        latencies,
    }
}

async fn run_tasks<S: Subject>(subject: &Arc<S>, round: &Round, time: Duration) -> Vec<Tally> {
    let hand_overs = (round.workload == Workload::Handoff).then(Arc::<HandOvers>::default);
    let until = now() + time;
    let mut tasks = JoinSet::new();
    for task in 0..round.callers {
        let subject = Arc::clone(subject);
        let (name, hold) = (round.name_of(task), round.hold);
        let hand_overs = hand_overs.clone();
        tasks.spawn(async move {
            let tally = run_task(&*subject, &name, task, hold, until, hand_overs.as_deref()).await;
            (task, tally)
        });
    }
    let mut tallies = Vec::with_capacity(tasks.len());
    while let Some(joined) = tasks.join_next().await {
        match joined {
            Ok(tally) => tallies.push(tally),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    tallies.sort_by_key(|(task, _)| *task);
    tallies.into_iter().map(|(_, tally)| tally).collect()
}

/// What one task did.
struct Tally {
    cycles: u64,
    errors: u64,
    first_error: Option<String>,
    latencies: Latencies,
    /// Those that are not among them yet. A histogram is large, and going to it each time would cost the next cycle what the
    /// processor had at hand.
    recent: Vec<Duration>,
    ended: Instant,
}

/// How many durations are gathered before they go to the histogram.
const RECENT: usize = 512;

impl Tally {
    fn took(&mut self, time: Duration) {
        self.recent.push(time);
        if self.recent.len() >= RECENT {
            self.settle();
        }
    }

    fn settle(&mut self) {
        for time in self.recent.drain(..) {
            self.latencies.record(time);
        }
    }

    fn failed(&mut self, error: &impl ToString) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }
}

async fn run_task<S: Subject>(
    subject: &S,
    name: &str,
    task: u32,
    hold: Duration,
    until: Instant,
    hand_overs: Option<&HandOvers>,
) -> Tally {
    let mut tally = Tally {
        cycles: 0,
        errors: 0,
        first_error: None,
        latencies: Latencies::new(),
        recent: Vec::with_capacity(RECENT),
        ended: now(),
    };
    // Everybody gets one cycle, also when the machine was too busy to start a task in time.
    loop {
        let start = now();
        let done = match subject.acquire(name).await {
            Ok(held) => {
                if let Some(released) = hand_overs.and_then(|all| all.granted(task)) {
                    tally.took(now().duration_since(released));
                }
                keep(hold).await;
                if let Some(hand_overs) = hand_overs {
                    hand_overs.releasing(task);
                }
                subject.release(held).await
            }
            Err(error) => Err(error),
        };
        tally.ended = now();
        match done {
            Ok(()) => {
                tally.cycles += 1;
                if hand_overs.is_none() {
                    tally.took(tally.ended.duration_since(start));
                }
            }
            Err(error) => {
                tally.failed(&error);
                pause_after_error().await;
            }
        }
        if tally.ended >= until {
            tally.settle();
            return tally;
        }
        // A subject that is always ready would keep its thread to itself until the time is over.
        consume_budget().await;
    }
}

/// When the lock was last released, and by which task. Only its holder looks.
#[derive(Default)]
struct HandOvers(Mutex<Option<(u32, Instant)>>);

impl HandOvers {
    /// When another task released the lock that `task` was just granted.
    fn granted(&self, task: u32) -> Option<Instant> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .and_then(|(other, released)| (other != task).then_some(released))
    }

    fn releasing(&self, task: u32) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((task, now()));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        sync::atomic::{AtomicU64, Ordering},
    };

    use tokio::sync::{OwnedSemaphorePermit, Semaphore};

    use super::*;

    /// Fair locks made of semaphores; every `fail_each`-th acquire fails.
    #[derive(Default)]
    struct Fake {
        names: Mutex<std::collections::HashMap<String, Arc<Semaphore>>>,
        calls: AtomicU64,
        fail_each: u64,
    }

    impl Subject for Fake {
        type Held = OwnedSemaphorePermit;
        type Error = &'static str;

        async fn acquire(&self, name: &str) -> std::result::Result<Self::Held, Self::Error> {
            let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if self.fail_each > 0 && call.is_multiple_of(self.fail_each) {
                return Err("as asked");
            }
            let lock = self
                .names
                .lock()
                .unwrap()
                .entry(name.to_owned())
                .or_insert_with(|| Arc::new(Semaphore::new(1)))
                .clone();
            Ok(lock.acquire_owned().await.unwrap())
        }

        async fn release(&self, _held: Self::Held) -> std::result::Result<(), Self::Error> {
            Ok(())
        }

        fn counters(&self) -> Counters {
            Counters {
                operations: Some(self.calls.load(Ordering::Relaxed)),
                ..Counters::default()
            }
        }
    }

    fn quick() -> Options {
        Options::default()
            .duration(Duration::from_millis(60))
            .rounds(3)
            .warmup(Duration::from_millis(1))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_workload_gives_samples_of_every_arm_and_round() {
        for workload in Workload::LOCKS {
            let arms = [
                Arm::new("one", Fake::default()),
                Arm::new("two", Fake::default()),
            ];
            let report = measure(&arms, workload, &quick()).await.unwrap();
            let rounds: HashSet<(&str, u32)> = report
                .samples
                .iter()
                .map(|s| (s.arm.as_str(), s.round))
                .collect();
            assert_eq!(rounds.len(), 6, "{workload}");
            assert_eq!(report.figures.len(), 2);
            assert_eq!(report.ratios.len(), 1);
            let callers = workload.default_concurrency() as usize;
            for sample in &report.samples {
                assert_eq!(sample.cycles_per_task.len(), callers);
                assert!(sample.cycles_per_task.iter().all(|&cycles| cycles > 0));
                assert_eq!((sample.errors, &sample.first_error), (0, &None));
                assert_eq!(sample.operations, Some(sample.cycles()), "one call a cycle");
                if workload == Workload::Handoff {
                    assert!(sample.latencies.count() > 0);
                } else {
                    assert_eq!(sample.latencies.count(), sample.cycles());
                }
            }
        }
    }

    #[tokio::test]
    async fn names_are_shared_only_where_the_workload_says_so() {
        for (workload, names) in [
            (Workload::Uncontended, 1),
            (Workload::Independent, 64),
            (Workload::Contended, 1),
            (Workload::Handoff, 1),
        ] {
            let subject = Arc::new(Fake::default());
            let round = Round {
                arm: "fake".into(),
                workload,
                number: 0,
                callers: workload.default_concurrency(),
                names: "bench:x".into(),
                shared: None,
                hold: Duration::ZERO,
                warmup: Duration::ZERO,
                time: Duration::from_millis(5),
            };
            run_round(Arc::clone(&subject), round).await;
            assert_eq!(subject.names.lock().unwrap().len(), names, "{workload}");
        }
    }

    #[tokio::test]
    async fn failures_are_counted() {
        let fake = Fake {
            fail_each: 2,
            ..Fake::default()
        };
        let report = measure(&[Arm::new("bad", fake)], Workload::Uncontended, &quick())
            .await
            .unwrap();
        let figures = &report.figures[0];
        assert!(figures.errors > 0 && figures.cycles > 0);
        assert_eq!(figures.first_error.as_deref(), Some("as asked"));
        assert!(report.to_string().contains("as asked"));
    }

    #[tokio::test]
    async fn arms_must_be_told_apart() {
        let twins = [
            Arm::new("same", Fake::default()),
            Arm::new("same", Fake::default()),
        ];
        for arms in [&twins[..], &[]] {
            let error = measure(arms, Workload::Contended, &quick())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn only_another_tasks_release_is_a_hand_over() {
        let hand_overs = HandOvers::default();
        assert!(hand_overs.granted(1).is_none());
        hand_overs.releasing(1);
        assert!(hand_overs.granted(1).is_none());
        hand_overs.releasing(1);
        assert!(hand_overs.granted(2).is_some());
        assert!(hand_overs.granted(2).is_none());
    }
}
