//! Runs `distlock-lab chaos --planted`.

use std::{collections::HashMap, process::ExitCode};

use anyhow::{Context as _, Result};

use super::kinds::StoreBug;
use crate::{
    chaos::{
        options::{ChaosOptions, chosen},
        output::{exit_code, print_line},
        run::{RunPlan, run_plan},
    },
    report::{self, PlantedBugResult, PlantedBugs},
};

/// Number of seeds that are tried for one bug. A bug depends on the scheduling of processes, so one
/// seed may not show it.
const TRIES: u64 = 3;
/// Seconds for which the twin of a bug runs.
const TWIN_SECONDS: u64 = 5;

/// Runs each planted bug, and its twin on the same seed.
pub(in crate::chaos) async fn run(chaos: &ChaosOptions, seed: u64) -> Result<ExitCode> {
    let mut twins = Twins::default();
    let mut bugs = Vec::new();
    for bug in chosen::<StoreBug>(&chaos.only) {
        let bug = find_bug(bug, chaos.seconds, seed, &mut twins).await?;
        print_line(&format!(
            "{}  {:<26} {:>6} operations  {}{}",
            if bug.found.is_some() {
                "caught"
            } else {
                "MISSED"
            },
            bug.name,
            bug.effort,
            bug.found.as_deref().unwrap_or_default(),
            if bug.twin_is_clean {
                ""
            } else {
                "; AND ITS TWIN IS ACCUSED"
            }
        ))?;
        bugs.push(bug);
    }
    let caught = bugs.iter().filter(|it| it.found.is_some());
    let mut operations: Vec<_> = caught.map(|it| it.effort).collect();
    operations.sort_unstable();
    let clean = bugs.iter().filter(|it| it.twin_is_clean).count();
    print_line(&format!(
        "{} of {} caught, median {} operations; {clean} twins are clean; \
         seed {seed}",
        operations.len(),
        bugs.len(),
        operations
            .get(operations.len() / 2)
            .copied()
            .unwrap_or_default(),
    ))?;
    let good = operations.len() == bugs.len() && clean == bugs.len();
    if let Some(folder) = &chaos.out {
        let command = format!(
            "distlock-lab chaos --planted --seconds {} --seed {seed}",
            chaos.seconds
        );
        let planted = PlantedBugs {
            command,
            unit: "operations".into(),
            bugs,
        };
        report::write_part(folder, "planted/stores.json", &planted)?;
        report::render(folder)?;
    }
    Ok(exit_code(good))
}

/// Looks for one bug on several seeds, and judges the twin on the last of them.
async fn find_bug(
    bug: StoreBug,
    seconds: u64,
    first: u64,
    twins: &mut Twins,
) -> Result<PlantedBugResult> {
    let mut outcome = PlantedBugResult::of(&bug, bug.store().key(), first);
    let mut plan = RunPlan::for_store(bug.store(), seconds, first);
    plan.bug = Some(bug);
    // A bug shows soon if many tasks compete for few locks.
    plan.brief_tasks = 0;
    plan.workloads = bug.workloads().to_vec();
    plan.ttl_ms = bug.ttl_ms();
    if let Some(tasks) = bug.tasks() {
        plan.tasks = tasks;
    }
    if let Some(faults) = bug.faults() {
        plan.faults = faults.to_vec();
    }
    for seed in first..first.saturating_add(TRIES) {
        (outcome.seed, plan.seed) = (seed, seed);
        let result = run_plan(&plan).await;
        let verdict = result
            .with_context(|| format!("{} with seed {seed}", bug.key()))?
            .verdict;
        outcome.effort += verdict.operations;
        let found = verdict
            .broken()
            .find(|it| bug.may_break().contains(&it.promise));
        if let Some(found) = found {
            outcome.found = Some(format!("{}: {}", found.promise, found.detail));
            break;
        }
    }
    plan.bug = bug.twin();
    // A short run could end before the first grant after a fault.
    if !bug.stops_grants() {
        plan.seconds = TWIN_SECONDS.min(seconds);
    }
    outcome.twin_is_clean = twins.is_clean(&plan).await?;
    Ok(outcome)
}

/// The verdicts on twins that have run. Many bugs have the same twin.
#[derive(Default)]
struct Twins(HashMap<String, bool>);

impl Twins {
    /// Tells whether a run without the bug breaks no promise. A plan is run once only.
    async fn is_clean(&mut self, plan: &RunPlan) -> Result<bool> {
        let key = format!(
            "{} {:?} {} {:?}",
            plan.command(),
            plan.ttl_ms,
            plan.tasks,
            plan.bug
        );
        if let Some(clean) = self.0.get(&key) {
            return Ok(*clean);
        }
        let verdict = run_plan(plan).await?.verdict;
        for it in verdict.broken() {
            print_line(&format!("  twin, BROKEN {}: {}", it.promise, it.detail))?;
        }
        let clean = verdict.broken().next().is_none();
        self.0.insert(key, clean);
        Ok(clean)
    }
}
