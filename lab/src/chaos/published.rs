//! The parts of the published report that `chaos` makes: data, no page.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    run::{Plan, Played},
    verdict::{Promise, Verdict},
};

/// The runs of one command.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Runs {
    /// Label and value: system, processor, load.
    pub(crate) machine: Vec<(String, String)>,
    pub(crate) version: String,
    pub(crate) date: String,
    pub(crate) cells: Vec<Cell>,
}

/// One run.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Cell {
    pub(crate) plan: Plan,
    /// The server's product and version, in its own words.
    pub(crate) server: String,
    /// The command that repeats the run.
    pub(crate) command: String,
    /// Without the violations that the documentation allows: they are counted in `excused`.
    pub(crate) verdict: Verdict,
    pub(crate) excused: Vec<Excused>,
}

/// Violations that the documentation allows after a fault, with one of them in full.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Excused {
    pub(crate) promise: Promise,
    pub(crate) fault: String,
    pub(crate) count: u64,
    pub(crate) example: String,
}

/// The planted bugs of one command.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Planted {
    pub(crate) command: String,
    pub(crate) seed: u64,
    pub(crate) bugs: Vec<PlantedBug>,
}

/// One planted bug, and whether it was found.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PlantedBug {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) store: String,
    pub(crate) operations: u64,
    /// The promise that was found broken, and how. `None` = it was missed.
    pub(crate) found: Option<String>,
    /// The seed on which it was found, or the last one.
    pub(crate) seed: u64,
    /// The honest store broke no promise on that seed.
    pub(crate) twin_is_clean: bool,
}

impl Runs {
    pub(crate) fn new() -> Self {
        Self {
            machine: distlock_report::machine(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            date: format!("{:.0}", jiff::Timestamp::now()),
            cells: Vec::new(),
        }
    }
}

impl Cell {
    pub(crate) fn new(plan: Plan, played: Played) -> Self {
        let mut verdict = played.verdict;
        let (allowed, broken) = std::mem::take(&mut verdict.violations)
            .into_iter()
            .partition::<Vec<_>, _>(|it| it.excused_by.is_some());
        verdict.violations = broken;
        let mut excused: BTreeMap<(Promise, String), Excused> = BTreeMap::new();
        for it in allowed {
            // "force-release of lock 1": the kind is enough.
            let fault = it.excused_by.unwrap_or_default();
            let fault = fault.split(" of ").next().unwrap_or_default().to_owned();
            let of_kind = excused.entry((it.promise, fault.clone()));
            of_kind
                .or_insert(Excused {
                    promise: it.promise,
                    fault,
                    count: 0,
                    example: it.detail,
                })
                .count += 1;
        }
        Self {
            command: plan.command(),
            plan,
            server: played.server,
            verdict,
            excused: excused.into_values().collect(),
        }
    }
}
