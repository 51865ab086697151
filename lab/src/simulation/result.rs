//! The result of one seed.

use super::{promise::Breach, trace::Trace};

/// The result of one seed.
#[derive(Debug)]
pub(super) struct SeedResult {
    pub(super) broken: Option<Breach>,
    pub(super) steps: u64,
    /// Two runs have the same hash if the same steps happened.
    pub(super) hash: u64,
    /// The last lines of the trace, or all lines.
    pub(super) lines: Vec<String>,
}

impl SeedResult {
    /// Combines the broken promise, if there is one, with the steps and lines of the trace.
    pub(super) fn with_trace(broken: Option<Breach>, trace: &Trace) -> Self {
        Self {
            broken,
            steps: trace.steps(),
            hash: trace.hash(),
            lines: trace.lines(),
        }
    }
}
