//! The results of a run, as numbers and violations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::promise::{Promise, Violation};
use crate::chaos::history::Micros;

/// The result of a run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Verdict {
    /// Calls of the library, and reads and writes of records.
    pub(crate) operations: u64,
    pub(crate) grants: u64,
    pub(crate) fenced_writes: u64,
    /// Writes that the fenced registers refused because they had seen a later token.
    pub(crate) fenced_refusals: u64,
    /// Updates that the unfenced registers lost.
    pub(crate) unfenced_lost: u64,
    /// Losses that were reported to a holder.
    pub(crate) losses: u64,
    /// Records with too many concurrent operations to decide.
    pub(crate) undecided_records: u64,
    /// Longest time for which a guard was valid beside newer ones of its name, from the first of
    /// them to the last, excused or not.
    pub(crate) longest_overlap_us: Micros,
    /// Times from the end of each fault to the next grant.
    pub(crate) recovery: Spread,
    /// Times from the deadline of each lost lease to its notice, in running time.
    pub(crate) notice: Spread,
    /// Number of faults by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) violations: Vec<Violation>,
}

/// The distribution of times.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    pub(crate) median_us: Micros,
    pub(crate) p99_us: Micros,
    pub(crate) longest_us: Micros,
}

impl Spread {
    /// Computes the distribution.
    pub(super) fn of_times(mut times: Vec<Micros>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let last = times.len().saturating_sub(1);
            times.get(last * percent / 100).copied().unwrap_or_default()
        };
        Self {
            count: times.len(),
            median_us: at(50),
            p99_us: at(99),
            longest_us: at(100),
        }
    }
}

impl Verdict {
    /// Returns the violations that no fault excuses.
    pub(crate) fn broken(&self) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(|it| it.excused_by.is_none())
    }

    /// Returns each broken promise once.
    pub(crate) fn broken_promises(&self) -> Vec<Promise> {
        let mut all: Vec<_> = self.broken().map(|it| it.promise).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
