//! Runs `distlock-lab chaos --controls`.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;

use super::{
    kinds::Control,
    run::{ControlPlan, NOT_APPLICABLE, control_figures, run_control, twin_figures},
};
use crate::{
    chaos::{
        nemesis::FaultKind,
        options::{ChaosOptions, chosen},
        output::{exit_code, print_broken, print_line, save_history},
        run::run_plan as run_twin,
    },
    report::{self, ControlReport, ControlRow},
};

/// Number of seeds that are tried for one control. A weakness depends on the scheduling of
/// processes, so one seed may not show it.
const TRIES: u64 = 3;

/// Runs each control, and its twin on the same seed.
pub(in crate::chaos) async fn run(chaos: &ChaosOptions, seed: u64) -> Result<ExitCode> {
    let mut good = true;
    let mut controls = ControlReport {
        not_applicable: NOT_APPLICABLE.map(|it| it.to_string()).into(),
        ..ControlReport::default()
    };
    for control in chosen::<Control>(&chaos.only) {
        let mut faults = control.faults().to_vec();
        if !chaos.faults.is_empty() {
            faults = applicable_faults(control);
            faults.retain(|it| chaos.faults.contains(it));
            ensure!(
                !faults.is_empty(),
                "the store of {} can have none of these faults",
                control.key()
            );
        }
        let plan = ControlPlan {
            control,
            faults,
            seconds: chaos.seconds,
            seed,
        };
        let row = run_with_twin(chaos, plan, TRIES).await?;
        good &= row.figures.violations > 0 && row.twin.violations == 0;
        print_result(&row, "NOT SEEN")?;
        controls.rows.push(row);
        if chaos.each {
            for fault in applicable_faults(control) {
                let plan = ControlPlan {
                    control,
                    faults: vec![fault],
                    seconds: chaos.seconds,
                    seed,
                };
                let row = run_with_twin(chaos, plan, 1).await?;
                good &= row.twin.violations == 0;
                print_line(&format!("under {} alone:", fault.key()))?;
                print_result(&row, "right")?;
                controls.by_fault.push(row);
            }
        }
        // The file is written after each control, so that a failed control loses no earlier result.
        if let Some(folder) = &chaos.out {
            report::write_part(folder, "controls.json", &controls)?;
        }
    }
    print_line(&format!(
        "not applicable to controls: {}",
        controls.not_applicable.join("; ")
    ))?;
    let violate = controls.rows.iter().filter(|it| it.figures.violations > 0);
    let all_rows = controls.rows.iter().chain(&controls.by_fault);
    print_line(&format!(
        "{} of {} controls violate exclusion, {} twins are accused; seed {seed}",
        violate.count(),
        controls.rows.len(),
        all_rows.filter(|it| it.twin.violations > 0).count(),
    ))?;
    if let Some(folder) = &chaos.out {
        report::render(folder)?;
    }
    Ok(exit_code(good))
}

/// Returns the faults that the store of a control can have.
fn applicable_faults(control: Control) -> Vec<FaultKind> {
    let all = FaultKind::value_variants().iter().copied();
    // `force-release` goes through distlock, which cannot free the lock of a control.
    let works_on_controls = |it: &FaultKind| *it != FaultKind::ForceRelease;
    all.filter(|it| it.applies_to(control.store()))
        .filter(works_on_controls)
        .collect()
}

/// Runs a control until it violates exclusion or all seeds were tried, and then its twin on the
/// seed of the last run.
async fn run_with_twin(
    chaos: &ChaosOptions,
    mut plan: ControlPlan,
    tries: u64,
) -> Result<ControlRow> {
    let mut runs = 0;
    let figures = loop {
        let (verdict, history) = run_control(&plan)
            .await
            .with_context(|| format!("{} with seed {}", plan.control.key(), plan.seed))?;
        runs += 1;
        let figures = control_figures(&verdict);
        if figures.violations > 0 {
            save_history(chaos, &plan.control.key(), plan.seed, &history)?;
        }
        if figures.violations > 0 || runs == tries {
            break figures;
        }
        plan.seed = plan.seed.wrapping_add(1);
    };
    let twin = plan.twin_plan();
    let result = run_twin(&twin)
        .await
        .with_context(|| format!("the twin of {}", plan.control.key()))?;
    if result.verdict.broken().next().is_some() {
        print_broken(chaos, &twin, &result)?;
    }
    Ok(ControlRow {
        command: plan.command(),
        control: plan.control.key(),
        about: plan.control.about().to_owned(),
        store: plan.control.store().key(),
        faults: plan.faults.iter().map(|it| it.key()).collect(),
        seconds: plan.seconds,
        seed: plan.seed,
        runs,
        server: result.server,
        figures,
        twin: twin_figures(&result.verdict),
    })
}

/// Prints the results of a control and of its twin. `otherwise` describes a control without a
/// violation.
fn print_result(row: &ControlRow, otherwise: &str) -> Result<()> {
    let (own, twin) = (&row.figures, &row.twin);
    let word = match own.violations {
        0 => otherwise,
        _ => "violates",
    };
    print_line(&format!(
        "{word:<8}  {:<16} {:>3} violations, longest overlap {} ms, {} updates lost, \
         {} operations, seed {}: {}",
        row.control,
        own.violations,
        own.longest_overlap_us / 1000,
        own.unfenced_lost,
        own.operations,
        row.seed,
        row.command
    ))?;
    let word = match twin.violations {
        0 => "clean",
        _ => "ACCUSED",
    };
    print_line(&format!(
        "  {word:<7} {:<16} {:>3} violations and {} as documented, longest overlap {} ms, \
         {} updates lost unfenced, {} fenced, {} operations",
        format!("distlock, {}", row.store),
        twin.violations,
        twin.after_documented,
        twin.longest_overlap_us / 1000,
        twin.unfenced_lost,
        twin.fenced_lost.unwrap_or_default(),
        twin.operations
    ))
}
