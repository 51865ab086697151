//! The data of the published report: numbers and sentences only.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The runs of one command.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RunSet {
    /// Label and value, for example the system, the processor and the load.
    pub(crate) machine: Vec<(String, String)>,
    pub(crate) version: String,
    pub(crate) date: String,
    pub(crate) runs: Vec<RunFigures>,
}

/// The results of one run on one store.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RunFigures {
    pub(crate) store: String,
    /// The server's product and version, as the server reports them.
    pub(crate) server: String,
    /// The kinds of faults of the run.
    pub(crate) kinds: Vec<String>,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// Shortest and longest TTL.
    pub(crate) ttl_ms: (u64, u64),
    /// The command that repeats the faults.
    pub(crate) command: String,
    /// Calls of the library, and reads and writes of records.
    pub(crate) operations: u64,
    pub(crate) grants: u64,
    /// Number of faults by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    /// Losses that were reported to a holder.
    pub(crate) losses: u64,
    pub(crate) fenced_writes: u64,
    pub(crate) fenced_refusals: u64,
    pub(crate) fenced_lost: usize,
    pub(crate) unfenced_lost: u64,
    /// Records with too many concurrent operations to search for an order.
    pub(crate) undecided_records: u64,
    /// Longest time for which two guards of one lock were both valid, excused or not.
    pub(crate) longest_overlap_us: u64,
    /// Times from the end of each fault to the next grant.
    pub(crate) recovery: Times,
    /// Times from the deadline of each lost lease to its notice.
    pub(crate) notice: Times,
    pub(crate) excused: Vec<ExcusedPromise>,
    pub(crate) broken: Vec<BrokenPromise>,
}

/// The distribution of times.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Times {
    pub(crate) count: usize,
    pub(crate) median_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) longest_us: u64,
}

/// Violations that the documentation allows after a fault, with one complete example.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExcusedPromise {
    pub(crate) promise: String,
    pub(crate) fault: String,
    pub(crate) count: u64,
    pub(crate) example: String,
}

/// A broken promise that no fault excuses.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct BrokenPromise {
    pub(crate) promise: String,
    pub(crate) detail: String,
}

/// The planted bugs of one command.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PlantedBugs {
    pub(crate) command: String,
    /// The unit of the effort: operations, events or seeds.
    pub(crate) unit: String,
    pub(crate) bugs: Vec<PlantedBugResult>,
}

/// One planted bug, and whether the lab found it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PlantedBugResult {
    pub(crate) name: String,
    pub(crate) about: String,
    /// The store with the bug.
    pub(crate) store: String,
    /// The effort until the bug was found.
    pub(crate) effort: u64,
    /// The broken promise and its details. `None` means that the bug was missed.
    pub(crate) found: Option<String>,
    /// The seed that showed the bug, or the last seed.
    pub(crate) seed: u64,
    /// Whether the twin broke no promise on that seed.
    pub(crate) twin_is_clean: bool,
}

impl PlantedBugResult {
    /// Returns a bug that is not found yet, with its name and help text from the command line.
    pub(crate) fn of(bug: &impl clap::ValueEnum, store: String, seed: u64) -> Self {
        let value = bug.to_possible_value();
        let value = value.as_ref();
        let help = value.and_then(clap::builder::PossibleValue::get_help);
        Self {
            name: value.map_or_else(String::new, |it| it.get_name().to_owned()),
            about: help.map_or_else(String::new, ToString::to_string),
            store,
            effort: 0,
            found: None,
            seed,
            twin_is_clean: false,
        }
    }
}

/// Locks of other libraries, and distlock beside each.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct ControlReport {
    /// Promises that no control makes.
    pub(crate) not_applicable: Vec<String>,
    /// Each control under the faults that show its weakness.
    pub(crate) rows: Vec<ControlRow>,
    /// Each control under one kind of fault at a time, with or without a violation.
    pub(crate) by_fault: Vec<ControlRow>,
}

/// A control and its twin, under the same faults of the same seed.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ControlRow {
    pub(crate) control: String,
    pub(crate) about: String,
    pub(crate) store: String,
    pub(crate) faults: Vec<String>,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// Number of runs of the control until it violated exclusion, including this run.
    pub(crate) runs: u64,
    /// The command that repeats both runs.
    pub(crate) command: String,
    /// The twin's server, as the server reports itself.
    pub(crate) server: String,
    pub(crate) figures: ControlFigures,
    pub(crate) twin: ControlFigures,
}

/// The results of one run of a control or of its twin.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ControlFigures {
    pub(crate) operations: u64,
    pub(crate) grants: u64,
    pub(crate) faults: u64,
    /// For a control: pairs of holders that believed in the lock at one instant. For a twin: broken
    /// promises outside the documented exceptions.
    pub(crate) violations: usize,
    /// For a control: those violations that came after a fault that would excuse distlock. For a
    /// twin: the excused violations, which `violations` does not count.
    pub(crate) after_documented: usize,
    pub(crate) longest_overlap_us: u64,
    /// Updates that the unfenced registers lost.
    pub(crate) unfenced_lost: u64,
    /// Updates that the fenced registers lost. `None` means that the control has no token.
    pub(crate) fenced_lost: Option<usize>,
    /// The first violation, in words.
    pub(crate) example: Option<String>,
}

/// The results of a simulation.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SimulationFigures {
    pub(crate) command: String,
    pub(crate) seeds: u64,
    pub(crate) steps: u64,
    pub(crate) seeds_a_minute: u64,
    /// The broken promise and its details.
    pub(crate) broken: Option<String>,
}

/// The results of a run of gateways over one store.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct GatewayFigures {
    pub(crate) store: String,
    pub(crate) nodes: u32,
    pub(crate) seconds: u64,
    pub(crate) command: String,
    /// Number of events that nodes reported. `seen` is the number of observations of clients.
    pub(crate) events: usize,
    pub(crate) seen: usize,
    /// Number of faults by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    /// Number of checks of each invariant.
    pub(crate) looked_at: BTreeMap<String, usize>,
    pub(crate) broken: Vec<String>,
}

/// A bug that the lab found in distlock.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct FoundBug {
    pub(crate) bug: String,
    /// The run that showed the bug.
    pub(crate) seen_by: String,
    /// The test that guards the fix.
    pub(crate) test: String,
}
