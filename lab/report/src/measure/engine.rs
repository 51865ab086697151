//! Measures arms in rounds.
//!
//! Invariant: arms take turns within each round, so figures that are compared come from the same
//! minute.

use distlock_core::{Error, ErrorKind, Result};

use super::{round::Round, subject::Arm};
use crate::{
    results::{report::Report, sample::Sample},
    workload::{Options, Workload},
};

/// Runs one workload on every arm, in rounds, with the arms taking turns. The report compares each
/// further arm with the first one.
///
/// Every run has lock names of its own, which start with `bench:`, unless the options name the
/// lock. A store that fails does not make this function fail: the report counts the failed cycles.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when the options do not fit the workload, when there is no arm,
/// or when two arms have one name.
///
/// # Cancel safety
/// Safe to drop: running cycles are aborted. A lock that is held at that moment is dropped, and the
/// subject decides what a drop does.
///
/// # Panics
/// When a subject panics.
pub async fn measure(arms: &[Arm], workload: Workload, options: &Options) -> Result<Report> {
    let callers = options.checked_callers(workload)?;
    check_arm_names(arms)?;
    let names = format!("bench:{:08x}", fastrand::u32(..));
    let mut samples = Vec::new();
    for round in 0..options.rounds {
        // Every other round runs the arms in reverse order, so no arm always runs after the same
        // other arm.
        let mut turn: Vec<&Arm> = arms.iter().collect();
        if round % 2 == 1 {
            turn.reverse();
        }
        for arm in turn {
            let round = Round::new(arm, workload, round, callers, &names, options);
            samples.push(arm.run(round).await);
        }
    }
    Ok(Report::new(samples))
}

/// Runs one round of one arm. The caller decides the order of the arms. After the warm-up the arm
/// is measured for the time of one round of the options: `duration` divided by `rounds`.
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
    let callers = options.checked_callers(workload)?;
    let names = format!("bench:{:08x}", fastrand::u32(..));
    let round = Round::new(arm, workload, number, callers, &names, options);
    Ok(arm.run(round).await)
}

/// Refuses an empty list of arms, and two arms with the same name.
fn check_arm_names(arms: &[Arm]) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    use distlock_core::sync::Mutex;
    use tokio::sync::{OwnedSemaphorePermit, Semaphore};

    use super::*;
    use crate::measure::subject::{Counters, Subject};

    /// Fair locks made of semaphores; every `fail_every`-th acquire fails.
    #[derive(Default)]
    struct Fake {
        names: Mutex<std::collections::HashMap<String, Arc<Semaphore>>>,
        calls: AtomicU64,
        fail_every: u64,
    }

    impl Subject for Fake {
        type Held = OwnedSemaphorePermit;
        type Error = &'static str;

        async fn acquire(&self, name: &str) -> std::result::Result<Self::Held, Self::Error> {
            let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if self.fail_every > 0 && call.is_multiple_of(self.fail_every) {
                return Err("as asked");
            }
            let lock = self
                .names
                .lock()
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

    fn short_options() -> Options {
        Options {
            duration: Duration::from_millis(60),
            rounds: 3,
            warmup: Duration::from_millis(1),
            ..Options::default()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_workload_gives_samples_of_every_arm_and_round() {
        for workload in Workload::LOCKS {
            let arms = [
                Arm::new("one", Fake::default()),
                Arm::new("two", Fake::default()),
            ];
            let report = measure(&arms, workload, &short_options()).await.unwrap();
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
    async fn callers_share_one_name_only_in_workloads_of_one_name() {
        for (workload, names) in [
            (Workload::Uncontended, 1),
            (Workload::Independent, 64),
            (Workload::Contended, 1),
            (Workload::Handoff, 1),
        ] {
            let subject = Arc::new(Fake::default());
            let arm = Arm::shared("fake", Arc::clone(&subject));
            measure_round(&arm, workload, 0, &short_options())
                .await
                .unwrap();
            assert_eq!(subject.names.lock().len(), names, "{workload}");
        }
    }

    #[tokio::test]
    async fn failed_cycles_are_counted_and_the_first_error_is_shown() {
        let fake = Fake {
            fail_every: 2,
            ..Fake::default()
        };
        let report = measure(
            &[Arm::new("bad", fake)],
            Workload::Uncontended,
            &short_options(),
        )
        .await
        .unwrap();
        let figures = &report.figures[0];
        assert!(figures.errors > 0 && figures.cycles > 0);
        assert_eq!(figures.first_error.as_deref(), Some("as asked"));
        assert!(report.to_string().contains("as asked"));
    }

    #[tokio::test]
    async fn no_arm_or_two_arms_of_one_name_are_refused() {
        let twins = [
            Arm::new("same", Fake::default()),
            Arm::new("same", Fake::default()),
        ];
        for arms in [&twins[..], &[]] {
            let error = measure(arms, Workload::Contended, &short_options())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}
