//! The state of one run: its plan, its stores, and its results so far; and time limits.

use std::{future::Future, time::Duration};

use distlock::{Clock as _, SystemClock};
use distlock_cli::program::Progress;
use distlock_report::{
    Workload,
    compare::{Figure, Missing, PeerRun, Scenario, ScenarioKind},
};
use serde::{Deserialize, Serialize};

use super::{cpu::Loads, files::SampleFolder, stores::StoreUnderTest};

/// The effort of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Effort {
    /// Too short for meaningful figures: for tests of the command itself.
    Tiny,
    /// A few minutes for all stores.
    Quick,
    /// Long rounds and all cases.
    Full,
}

/// The times and counts of a run. Two runs with the same plan and the same stores can share their
/// rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) effort: Effort,
    pub(super) rounds: u32,
    /// The time of one round of one store.
    pub(super) time: Duration,
    pub(super) warmup: Duration,
    /// The number of wake-ups per round.
    pub(super) wakes: u32,
    /// The number of accounts whose sessions are taken over at the same time.
    pub(super) accounts: u32,
    /// The number of idle sessions.
    pub(super) sessions: u32,
    /// How many other locks are held, for each step of the measurement of growth.
    pub(super) idle: Vec<u32>,
    /// The time in which requests of waiters are counted.
    pub(super) waiting: Duration,
    /// The most cases of the suite per property.
    pub(super) cases: usize,
}

/// A workload with its number of callers, and its name in the report.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    pub(super) key: String,
    pub(super) workload: Workload,
    pub(super) callers: u32,
}

impl Experiment {
    pub(super) fn new(key: &str, workload: Workload, callers: u32) -> Self {
        Self {
            key: key.into(),
            workload,
            callers,
        }
    }
}

impl Plan {
    /// The plan for an effort.
    pub(super) fn new(effort: Effort) -> Self {
        let ms = Duration::from_millis;
        match effort {
            Effort::Tiny => Self {
                effort,
                rounds: 2,
                time: ms(30),
                warmup: ms(5),
                wakes: 1,
                accounts: 2,
                sessions: 4,
                idle: vec![2, 4],
                waiting: ms(100),
                cases: 0,
            },
            Effort::Quick => Self {
                effort,
                rounds: 3,
                time: ms(300),
                warmup: ms(60),
                wakes: 6,
                accounts: 16,
                sessions: 200,
                idle: vec![10, 1_000],
                waiting: ms(2_000),
                cases: 1,
            },
            Effort::Full => Self {
                effort,
                rounds: 5,
                time: ms(2_000),
                warmup: ms(300),
                wakes: 40,
                accounts: 32,
                sessions: 2_000,
                idle: vec![10, 1_000, 100_000],
                waiting: ms(10_000),
                cases: usize::MAX,
            },
        }
    }

    /// The workloads that measure locks, in the order of the report.
    pub(super) fn experiments() -> Vec<Experiment> {
        let experiment = Experiment::new;
        vec![
            experiment("uncontended", Workload::Uncontended, 1),
            experiment("independent-1", Workload::Independent, 1),
            experiment("independent-16", Workload::Independent, 16),
            experiment("independent-32", Workload::Independent, 32),
            experiment("independent-64", Workload::Independent, 64),
            experiment("independent-256", Workload::Independent, 256),
            experiment("contended-16", Workload::Contended, 16),
            experiment("handoff-2", Workload::Handoff, 2),
        ]
    }
}

/// The result of `work`, or `None` if it takes longer than `time`.
pub(super) async fn within<F: Future>(time: Duration, work: F) -> Option<F::Output> {
    tokio::time::timeout(time, Box::pin(work)).await.ok()
}

/// Waits in real time.
pub(super) async fn pause(time: Duration) {
    SystemClock.sleep(time).await;
}

/// A run in progress.
pub(super) struct ComparisonRun {
    pub(super) plan: Plan,
    pub(super) stores: Vec<StoreUnderTest>,
    pub(super) kept: SampleFolder,
    pub(super) progress: Progress,
    pub(super) figures: Vec<Figure>,
    pub(super) missing: Vec<Missing>,
    pub(super) scenarios: Vec<Scenario>,
    pub(super) peers: Vec<PeerRun>,
    pub(super) loads: Loads,
}

impl ComparisonRun {
    /// The number of steps of the progress bar.
    pub(super) fn count_steps(&self, experiments: usize) -> usize {
        // Besides the workloads, these measurements have rounds: wake-ups, competing processes, the
        // kick-out flow, counters, a cache, and each number of idle locks.
        let rounds = (experiments + 5 + self.plan.idle.len()) * self.plan.rounds as usize;
        // These measurements run once per store: properties, waiting, idle sessions, bytes and
        // memory.
        (rounds + 5) * self.stores.len() + ScenarioKind::ALL.len()
    }
}
