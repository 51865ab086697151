//! Runs `distlock-lab chaos --gateways`.

use std::{collections::BTreeMap, fs, io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use super::{
    planted_bugs::{NodeBug, NodeFaultKind},
    run::{GatewayPlan, GatewayResult, run_plan},
};
use crate::{
    chaos::stores::StoreKind,
    report::{self, GatewayFigures, PlantedBugResult, PlantedBugs},
};

/// The options of runs with gateways, in addition to the options of all runs.
#[derive(Debug, clap::Args)]
pub(crate) struct GatewayOptions {
    /// Run kick-out gateways over the stores, and clients that end each other's sessions
    #[arg(long, conflicts_with_all = ["faults", "workloads", "each", "only"])]
    pub(crate) gateways: bool,
    /// With --gateways: number of nodes
    #[arg(
        long,
        default_value_t = 2,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=9),
        requires = "gateways"
    )]
    nodes: u32,
    /// With --gateways: faults to draw from (default: all that apply to the store)
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "KINDS",
        requires = "gateways"
    )]
    node_faults: Vec<NodeFaultKind>,
    /// With --gateways --planted: these bugs only
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "BUGS",
        requires_all = ["gateways", "planted"]
    )]
    node_bugs: Vec<NodeBug>,
}

/// The options that every run has.
#[derive(Debug)]
pub(crate) struct CommonOptions<'a> {
    pub(crate) stores: &'a [StoreKind],
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) keep: Option<&'a PathBuf>,
    pub(crate) out: Option<&'a PathBuf>,
    /// Plants each known bug, and checks that the verdict finds it.
    pub(crate) planted: bool,
}

/// Runs the command.
pub(crate) async fn run(options: &GatewayOptions, run: &CommonOptions<'_>) -> Result<ExitCode> {
    let good = if run.planted {
        run_planted(options, run).await?
    } else {
        run_honest(options, run).await?
    };
    print_line(&format!("seed {}", run.seed))?;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Plans a run without a bug on one store.
fn plan(options: &GatewayOptions, run: &CommonOptions<'_>, store: StoreKind) -> GatewayPlan {
    let all = NodeFaultKind::value_variants().iter().copied();
    let wanted =
        |it: &NodeFaultKind| options.node_faults.is_empty() || options.node_faults.contains(it);
    GatewayPlan {
        store,
        nodes: options.nodes,
        faults: all
            .filter(|it| it.applies_to(store) && wanted(it))
            .collect(),
        seconds: run.seconds,
        seed: run.seed,
        bug: None,
    }
}

/// Runs nodes without a planted bug on each store. Returns whether every run was clean.
async fn run_honest(options: &GatewayOptions, run: &CommonOptions<'_>) -> Result<bool> {
    let mut good = true;
    for store in run.stores {
        if *store == StoreKind::Memory {
            print_line(
                "memory     not applicable: nodes are processes, and its store is in one of them",
            )?;
            continue;
        }
        let plan = plan(options, run, *store);
        let result = Box::pin(run_plan(&plan))
            .await
            .with_context(|| format!("{} with seed {}", store.key(), run.seed))?;
        print_result(&plan, &result)?;
        if !result.is_clean() {
            good = false;
            print_broken(&plan, &result, run)?;
        }
        if let Some(folder) = run.out {
            let name = format!("gateways/{}-{}.json", store.key(), run.seed);
            report::write_part(folder, &name, &published_figures(&plan, &result))?;
            report::render(folder)?;
        }
    }
    Ok(good)
}

/// Converts a run into the data of the published report.
fn published_figures(plan: &GatewayPlan, result: &GatewayResult) -> GatewayFigures {
    let looked_at = result.report.looked_at.iter();
    let violations = result.report.violations.iter().map(ToString::to_string);
    GatewayFigures {
        store: plan.store.key(),
        nodes: plan.nodes,
        seconds: plan.seconds,
        command: plan.command(),
        events: result.history.nodes.len(),
        seen: result.history.clients.len(),
        faults: result.faults.clone(),
        looked_at: looked_at
            .map(|(it, times)| (it.to_string(), *times))
            .collect(),
        broken: violations.chain(result.problems.iter().cloned()).collect(),
    }
}

/// Prints the results of a run.
fn print_result(plan: &GatewayPlan, result: &GatewayResult) -> Result<()> {
    let faults: u64 = result.faults.values().sum();
    print_line(&format!(
        "{:<10} {} nodes, {:>6} events, {:>5} observations of clients, {faults:>3} faults; \
         looked at {}",
        plan.store.key(),
        plan.nodes,
        result.history.nodes.len(),
        result.history.clients.len(),
        result
            .report
            .looked_at
            .iter()
            .map(|(invariant, times)| format!("{invariant}:{times}"))
            .collect::<Vec<_>>()
            .join(" ")
    ))
}

/// Prints the first violations and the command that repeats the run, and keeps the history.
fn print_broken(plan: &GatewayPlan, result: &GatewayResult, run: &CommonOptions<'_>) -> Result<()> {
    let violations = result.report.violations.iter().map(ToString::to_string);
    let all: Vec<_> = violations.chain(result.problems.iter().cloned()).collect();
    for broken in all.iter().take(10) {
        print_line(&format!("  BROKEN {broken}"))?;
    }
    if all.len() > 10 {
        print_line(&format!("  and {} more", all.len() - 10))?;
    }
    print_line(&format!("  repeat: {}", plan.command()))?;
    save_history(plan, result, run)
}

/// Writes the history into the folder of `--keep`, if there is one.
fn save_history(plan: &GatewayPlan, result: &GatewayResult, run: &CommonOptions<'_>) -> Result<()> {
    let Some(folder) = run.keep else {
        return Ok(());
    };
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let bug = plan.bug.map(|bug| format!("-{}", bug.key()));
    let bug = bug.unwrap_or_default();
    let name = format!("gateways-{}{bug}-{}.jsonl", plan.store.key(), plan.seed);
    let path = folder.join(name);
    fs::write(&path, result.history.to_lines()?).with_context(|| path.display().to_string())?;
    print_line(&format!("  history: {}", path.display()))
}

/// Number of seeds that are tried for one bug. A bug depends on the scheduling of processes, so one
/// seed may not show it.
const TRIES: u64 = 3;

/// Runs each planted bug on the store, and honest nodes on the same seeds.
async fn run_planted(options: &GatewayOptions, run: &CommonOptions<'_>) -> Result<bool> {
    let bugs = match &options.node_bugs[..] {
        [] => NodeBug::value_variants(),
        some => some,
    };
    let mut outcome = Vec::new();
    for bug in bugs {
        let bug = find_bug(*bug, options, run).await?;
        let word = if bug.found.is_some() {
            "caught"
        } else {
            "MISSED"
        };
        let found = bug.found.as_deref().unwrap_or_default();
        print_line(&format!("{word}  {:<26} {found}", bug.name))?;
        outcome.push(bug);
    }
    let mut twins = BTreeMap::new();
    for bug in &mut outcome {
        bug.twin_is_clean = match twins.get(&bug.seed) {
            Some(clean) => *clean,
            None => {
                let mut twin = plan(options, run, StoreKind::Redis);
                twin.seed = bug.seed;
                let result = Box::pin(run_plan(&twin)).await?;
                if !result.is_clean() {
                    print_broken(&twin, &result, run)?;
                }
                twins.insert(bug.seed, result.is_clean());
                result.is_clean()
            }
        };
    }
    let clean = outcome.iter().all(|it| it.twin_is_clean);
    let caught = outcome.iter().filter(|it| it.found.is_some()).count();
    print_line(&format!(
        "{caught} of {} caught; the twins {}",
        outcome.len(),
        if clean { "are clean" } else { "ARE ACCUSED" }
    ))?;
    let good = caught == outcome.len() && clean;
    if let Some(folder) = run.out {
        let planted = PlantedBugs {
            command: format!(
                "distlock-lab chaos --gateways --planted --seconds {} --seed {}",
                run.seconds, run.seed
            ),
            unit: "events".into(),
            bugs: outcome,
        };
        report::write_part(folder, "planted/gateways.json", &planted)?;
        report::render(folder)?;
    }
    Ok(good)
}

/// Looks for one bug on several seeds.
async fn find_bug(
    bug: NodeBug,
    options: &GatewayOptions,
    run: &CommonOptions<'_>,
) -> Result<PlantedBugResult> {
    let mut outcome = PlantedBugResult::of(&bug, StoreKind::Redis.key(), run.seed);
    for seed in run.seed..run.seed.saturating_add(TRIES) {
        let mut plan = plan(options, run, StoreKind::Redis);
        plan.bug = Some(bug);
        plan.seed = seed;
        outcome.seed = seed;
        if !bug.faults().is_empty() {
            plan.faults = bug.faults().to_vec();
        }
        let result = Box::pin(run_plan(&plan))
            .await
            .with_context(|| format!("{} with seed {seed}", outcome.name))?;
        outcome.effort += u64::try_from(result.history.nodes.len())?;
        outcome.found = bug.find_violation(&result.report);
        if outcome.found.is_some() {
            break;
        }
        save_history(&plan, &result, run)?;
    }
    Ok(outcome)
}

fn print_line(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")?;
    Ok(())
}
