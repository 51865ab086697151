//! The result of one seed.

use super::{promise::Broken, trace::Trace};

/// The result of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) broken: Option<Broken>,
    pub(super) steps: u64,
    /// The same for two runs in which the same happened.
    pub(super) hash: u64,
    /// The last lines of the trace, or all of them.
    pub(super) lines: Vec<String>,
}

impl Outcome {
    pub(super) fn of(broken: Option<Broken>, trace: &Trace) -> Self {
        Self {
            broken,
            steps: trace.steps(),
            hash: trace.hash(),
            lines: trace.lines(),
        }
    }
}
