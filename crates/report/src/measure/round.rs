//! One round of one arm: tasks run cycles until the time is over.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::task::{JoinSet, coop::consume_budget};

use super::{
    subject::{Counters, Subject},
    timing::{keep, nanos, now, pause_after_error},
    workload::Workload,
};
use crate::results::sample::{Latencies, Sample};

/// What one arm does in its turn.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(super) arm: String,
    pub(super) workload: Workload,
    pub(super) number: u32,
    pub(super) callers: u32,
    pub(super) names: String,
    /// The lock of a workload that shares one, where it was named.
    pub(super) shared: Option<String>,
    /// How long each lock is kept.
    pub(super) hold: Duration,
    pub(super) warmup: Duration,
    pub(super) time: Duration,
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
    use super::*;

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
