//! `distlock-lab chaos`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::{
    controls, gateways,
    options::Chaos,
    output::{code, say, tell_broken},
    plants, published,
    run::{Plan, Played, play},
    stores::Kind,
};
use crate::report;

/// Runs it.
pub(crate) async fn run(chaos: Chaos) -> Result<ExitCode> {
    let seed = chaos.seed.unwrap_or_else(|| fastrand::u64(..));
    if chaos.gateways.gateways {
        let run = gateways::Run {
            stores: &chaos.spawn,
            seconds: chaos.seconds,
            seed,
            keep: chaos.keep.as_ref(),
            out: chaos.out.as_ref(),
            planted: chaos.planted,
        };
        return gateways::run(&chaos.gateways, &run).await;
    }
    if chaos.planted {
        plants::run(&chaos, seed).await
    } else if chaos.controls {
        controls::run(&chaos, seed).await
    } else {
        stores(&chaos, seed).await
    }
}

async fn stores(chaos: &Chaos, seed: u64) -> Result<ExitCode> {
    let mut good = true;
    let mut runs = published::runs();
    for store in &chaos.spawn {
        for plan in plans(chaos, *store, seed) {
            let played = play(&plan)
                .await
                .with_context(|| format!("{} with seed {seed}", store.key()))?;
            tell(&plan, &played)?;
            if played.verdict.broken().next().is_some() {
                good = false;
                tell_broken(chaos, &plan, &played)?;
            }
            runs.runs.push(published::run(&plan, played));
            // Written after each run, so that a run that fails loses no earlier one.
            if let Some(folder) = &chaos.out {
                report::keep(folder, &format!("runs/{}.json", chaos.name(seed)), &runs)?;
            }
        }
    }
    if let Some(folder) = &chaos.out {
        report::render(folder)?;
    }
    say(&format!("seed {seed}"))?;
    Ok(code(good))
}

/// One run with all faults, or one for each of them.
fn plans(chaos: &Chaos, store: Kind, seed: u64) -> Vec<Plan> {
    let mut all = Plan::of(store, chaos.seconds, seed);
    if !chaos.faults.is_empty() {
        all.faults.retain(|it| chaos.faults.contains(it));
    }
    if !chaos.workloads.is_empty() {
        all.workloads.clone_from(&chaos.workloads);
    }
    if !chaos.each {
        return vec![all];
    }
    let faults = all.faults.clone().into_iter();
    let one = |fault| Plan {
        faults: vec![fault],
        ..all.clone()
    };
    faults.map(one).collect()
}

fn tell(plan: &Plan, played: &Played) -> Result<()> {
    let verdict = &played.verdict;
    let faults: u64 = verdict.faults.values().sum();
    say(&format!(
        "{:<10} {:>7} operations, {:>5} grants, {faults:>4} faults, {:>3} losses told; \
         {} updates lost unfenced, longest overlap {} ms",
        plan.store.key(),
        verdict.operations,
        verdict.grants,
        verdict.losses,
        verdict.unfenced_lost,
        verdict.longest_overlap_us / 1000
    ))?;
    if verdict.undecided_records > 0 {
        say(&format!(
            "           {} records were too busy to be judged",
            verdict.undecided_records
        ))?;
    }
    let excused = verdict.violations.len() - verdict.broken().count();
    if excused > 0 {
        say(&format!(
            "           {excused} as documented after a fault, for example {}",
            example(played)
        ))?;
    }
    Ok(())
}

/// An exception and the fault that it was matched to.
fn example(played: &Played) -> String {
    let excused = played
        .verdict
        .violations
        .iter()
        .find_map(|it| Some((it, it.excused_by.as_ref()?)));
    excused.map_or_else(String::new, |(it, fault)| {
        format!("{} (after {fault})", it.detail)
    })
}
