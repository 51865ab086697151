//! `distlock-lab chaos --planted`.

use std::{collections::HashMap, process::ExitCode};

use anyhow::{Context as _, Result};

use super::kinds::Plant;
use crate::{
    chaos::{
        options::{Chaos, chosen},
        output::{code, say},
        run::{Plan, play},
    },
    report::{self, Planted, PlantedBug},
};

/// Seeds that are tried for one bug: whether it shows depends on what the processes do meanwhile.
const TRIES: u64 = 3;
/// How long the honest store is judged for each bug.
const TWIN_SECONDS: u64 = 5;

/// Each bug, and beside it the honest store on the same seed.
pub(in crate::chaos) async fn run(chaos: &Chaos, seed: u64) -> Result<ExitCode> {
    let mut twins = Twins::default();
    let mut bugs = Vec::new();
    for bug in chosen::<Plant>(&chaos.only) {
        let bug = hunt(bug, chaos.seconds, seed, &mut twins).await?;
        say(&format!(
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
                "; AND THE HONEST STORE IS ACCUSED"
            }
        ))?;
        bugs.push(bug);
    }
    let caught = bugs.iter().filter(|it| it.found.is_some());
    let mut operations: Vec<_> = caught.map(|it| it.effort).collect();
    operations.sort_unstable();
    let clean = bugs.iter().filter(|it| it.twin_is_clean).count();
    say(&format!(
        "{} of {} caught, median {} operations; the honest store is clean beside {clean}; \
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
        let planted = Planted {
            command,
            unit: "operations".into(),
            bugs,
        };
        report::keep(folder, "planted/stores.json", &planted)?;
        report::render(folder)?;
    }
    Ok(code(good))
}

/// Looks for one bug on several seeds, and judges the honest store on the seed where it was found.
async fn hunt(bug: Plant, seconds: u64, first: u64, twins: &mut Twins) -> Result<PlantedBug> {
    let mut hunted = PlantedBug::of(&bug, bug.store().key(), first);
    let mut plan = Plan::of(bug.store(), seconds, first);
    plan.plant = Some(bug);
    // Bugs show where many fight for few locks.
    plan.hurrying = 0;
    plan.workloads = bug.workloads().to_vec();
    plan.ttl_ms = bug.ttl_ms();
    if let Some(faults) = bug.faults() {
        plan.faults = faults.to_vec();
    }
    for seed in first..first.saturating_add(TRIES) {
        (hunted.seed, plan.seed) = (seed, seed);
        let played = play(&plan).await;
        let verdict = played
            .with_context(|| format!("{} with seed {seed}", bug.key()))?
            .verdict;
        hunted.effort += verdict.operations;
        let found = verdict
            .broken()
            .find(|it| bug.breaks().contains(&it.promise));
        if let Some(found) = found {
            hunted.found = Some(format!("{}: {}", found.promise, found.detail));
            break;
        }
    }
    plan.plant = None;
    // A server that takes the place of another takes its time.
    if !bug.needs_a_group() {
        plan.seconds = TWIN_SECONDS.min(seconds);
    }
    hunted.twin_is_clean = twins.is_clean(&plan).await?;
    Ok(hunted)
}

/// The honest stores that were judged. Many bugs have the same one.
#[derive(Default)]
struct Twins(HashMap<String, bool>);

impl Twins {
    async fn is_clean(&mut self, plan: &Plan) -> Result<bool> {
        let key = format!("{} {:?}", plan.command(), plan.ttl_ms);
        if let Some(clean) = self.0.get(&key) {
            return Ok(*clean);
        }
        let verdict = play(plan).await?.verdict;
        for it in verdict.broken() {
            say(&format!("  honest, BROKEN {}: {}", it.promise, it.detail))?;
        }
        let clean = verdict.broken().next().is_none();
        self.0.insert(key, clean);
        Ok(clean)
    }
}
