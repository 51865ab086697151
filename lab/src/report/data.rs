//! The data of the published report: figures and sentences, and nothing of how they came about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The runs of one command.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RunSet {
    /// Label and value: system, processor, load.
    pub(crate) machine: Vec<(String, String)>,
    pub(crate) version: String,
    pub(crate) date: String,
    pub(crate) runs: Vec<RunFigures>,
}

/// One store that was broken for a while.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct RunFigures {
    pub(crate) store: String,
    /// The server's product and version, in its own words.
    pub(crate) server: String,
    /// The kinds of faults that were drawn from.
    pub(crate) kinds: Vec<String>,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    /// Shortest and longest lease.
    pub(crate) ttl_ms: (u64, u64),
    /// The command that repeats the faults.
    pub(crate) command: String,
    /// Calls of the library, and reads and writes of records.
    pub(crate) operations: u64,
    pub(crate) grants: u64,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    /// Losses that were told.
    pub(crate) losses: u64,
    pub(crate) fenced_writes: u64,
    pub(crate) fenced_refusals: u64,
    pub(crate) fenced_lost: usize,
    pub(crate) unfenced_lost: u64,
    /// Records with so many operations at once that no order could be searched.
    pub(crate) undecided_records: u64,
    /// Longest time that two guards of one lock were valid, excused or not.
    pub(crate) longest_overlap_us: u64,
    /// From the end of each fault to the next grant.
    pub(crate) recovery: Times,
    /// From the deadline of each lost lease to its notice.
    pub(crate) notice: Times,
    pub(crate) excused: Vec<ExcusedPromise>,
    pub(crate) broken: Vec<BrokenPromise>,
}

/// How times are spread.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Times {
    pub(crate) count: usize,
    pub(crate) median_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) longest_us: u64,
}

/// Violations that the documentation allows after a fault, with one of them in full.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ExcusedPromise {
    pub(crate) promise: String,
    pub(crate) fault: String,
    pub(crate) count: u64,
    pub(crate) example: String,
}

/// A promise that was broken, and nothing excuses it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct BrokenPromise {
    pub(crate) promise: String,
    pub(crate) detail: String,
}

/// The planted bugs of one command.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PlantedBugs {
    pub(crate) command: String,
    /// The unit of the effort: operations, or seeds.
    pub(crate) unit: String,
    pub(crate) bugs: Vec<PlantedBugResult>,
}

/// One planted bug, and whether it was found.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PlantedBugResult {
    pub(crate) name: String,
    pub(crate) about: String,
    /// Where it was planted.
    pub(crate) store: String,
    /// Until it was found.
    pub(crate) effort: u64,
    /// The promise that was found broken, and how. `None` = it was missed.
    pub(crate) found: Option<String>,
    /// The seed on which it was found, or the last one.
    pub(crate) seed: u64,
    /// The same without the bug broke no promise on that seed.
    pub(crate) twin_is_clean: bool,
}

impl PlantedBugResult {
    /// A bug that was not found yet, with its name and help of the command line.
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

/// Locks that others write, and distlock beside each.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct ControlReport {
    /// Promises that a control cannot make.
    pub(crate) not_applicable: Vec<String>,
    /// Each control under the faults that show its weakness.
    pub(crate) rows: Vec<ControlRow>,
    /// Each control under one kind of fault at a time, also where it is right.
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
    /// Runs of the control until it violated exclusion, this one included.
    pub(crate) runs: u64,
    /// The command that repeats both.
    pub(crate) command: String,
    /// The twin's server, in its own words.
    pub(crate) server: String,
    pub(crate) figures: ControlFigures,
    pub(crate) twin: ControlFigures,
}

/// The figures of one run of a control or of its twin.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ControlFigures {
    pub(crate) operations: u64,
    pub(crate) grants: u64,
    pub(crate) faults: u64,
    /// Of a control: two believed at one instant. Of a twin: any promise that was broken outside
    /// the documented exceptions.
    pub(crate) violations: usize,
    /// Of a control: those of the violations that came after a fault for which the documentation
    /// of distlock would excuse distlock. Of a twin: those that it excuses, which are not counted
    /// above.
    pub(crate) after_documented: usize,
    pub(crate) longest_overlap_us: u64,
    /// Updates that the unfenced registers lost.
    pub(crate) unfenced_lost: u64,
    /// Updates that the fenced registers lost. `None` = not applicable: there is no token.
    pub(crate) fenced_lost: Option<usize>,
    /// The first violation, in words.
    pub(crate) example: Option<String>,
}

/// Seeds of the simulation.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SimulationFigures {
    pub(crate) command: String,
    pub(crate) seeds: u64,
    pub(crate) steps: u64,
    pub(crate) seeds_a_minute: u64,
    /// The promise that was broken, and how.
    pub(crate) broken: Option<String>,
}

/// Nodes of the kick-out gateway over one store.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct GatewayFigures {
    pub(crate) store: String,
    pub(crate) nodes: u32,
    pub(crate) seconds: u64,
    pub(crate) command: String,
    /// Steps of the flow that nodes reported, and things that clients saw.
    pub(crate) events: usize,
    pub(crate) seen: usize,
    /// Faults by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    /// How often each invariant was put at risk.
    pub(crate) looked_at: BTreeMap<String, usize>,
    pub(crate) broken: Vec<String>,
}

/// A bug that the lab found in distlock.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct FoundBug {
    pub(crate) bug: String,
    /// The run that showed it.
    pub(crate) seen_by: String,
    /// The test that guards the mend.
    pub(crate) test: String,
}
