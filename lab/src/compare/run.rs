//! The state of one run of the comparison: its stores, and the figures so far.

use distlock_report::compare::{Figure, PeerRun, Scenario, ScenarioKind};

use super::{cpu::Loads, gaps::Missing, kept::SampleFolder, plan::Plan, stores::StoreUnderTest};
use distlock_cli::program::Progress;

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
