//! Runs `distlock-lab chaos`: chooses the runs that the options ask for, and prints the result of
//! each.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use super::{
    controls, gateways,
    options::ChaosOptions,
    output::{self, exit_code, print_broken, print_line},
    planted_bugs,
    run::{RunPlan, RunResult, run_plan},
    stores::StoreKind,
};
use crate::report;

/// Runs the command.
pub(crate) async fn run(chaos: ChaosOptions) -> Result<ExitCode> {
    let seed = chaos.seed.unwrap_or_else(|| fastrand::u64(..));
    if chaos.gateways.gateways {
        let run = gateways::CommonOptions {
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
        planted_bugs::run(&chaos, seed).await
    } else if chaos.controls {
        controls::run(&chaos, seed).await
    } else {
        run_stores(&chaos, seed).await
    }
}

/// Runs distlock on each chosen store, and prints and publishes the results.
async fn run_stores(chaos: &ChaosOptions, seed: u64) -> Result<ExitCode> {
    let mut good = true;
    let mut runs = output::empty_run_set();
    for store in &chaos.spawn {
        for plan in plan_runs(chaos, *store, seed) {
            let result = run_plan(&plan)
                .await
                .with_context(|| format!("{} with seed {seed}", store.key()))?;
            print_result(&plan, &result)?;
            if result.verdict.broken().next().is_some() {
                good = false;
                print_broken(chaos, &plan, &result)?;
            }
            runs.runs.push(output::run_figures(&plan, result));
            // The file is written after each run, so that a failed run loses no earlier result.
            if let Some(folder) = &chaos.out {
                report::write_part(
                    folder,
                    &format!("runs/{}.json", chaos.result_name(seed)),
                    &runs,
                )?;
            }
        }
    }
    if let Some(folder) = &chaos.out {
        report::render(folder)?;
    }
    print_line(&format!("seed {seed}"))?;
    Ok(exit_code(good))
}

/// Plans one run with all faults or, with `--each`, one run for each fault.
fn plan_runs(chaos: &ChaosOptions, store: StoreKind, seed: u64) -> Vec<RunPlan> {
    let mut all = RunPlan::for_store(store, chaos.seconds, seed);
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
    let one = |fault| RunPlan {
        faults: vec![fault],
        ..all.clone()
    };
    faults.map(one).collect()
}

/// Prints the results of a run, its undecided records and its excused violations.
fn print_result(plan: &RunPlan, result: &RunResult) -> Result<()> {
    let verdict = &result.verdict;
    let faults: u64 = verdict.faults.values().sum();
    print_line(&format!(
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
        print_line(&format!(
            "           {} records had too many concurrent operations to be judged",
            verdict.undecided_records
        ))?;
    }
    let excused = verdict.violations.len() - verdict.broken().count();
    if excused > 0 {
        print_line(&format!(
            "           {excused} violations as documented after a fault, for example {}",
            excused_example(result)
        ))?;
    }
    Ok(())
}

/// Describes one excused violation and the fault that excuses the violation.
fn excused_example(result: &RunResult) -> String {
    let excused = result
        .verdict
        .violations
        .iter()
        .find_map(|it| Some((it, it.excused_by.as_ref()?)));
    excused.map_or_else(String::new, |(it, fault)| {
        format!("{} (after {fault})", it.detail)
    })
}
