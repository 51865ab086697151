//! `distlock-lab chaos --gateways`.

use std::{collections::BTreeMap, fs, io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use super::{
    kinds::NodeBreak,
    plants::NodeBug,
    run::{Plan, Played, play},
};
use crate::{
    chaos::stores::Kind,
    report::{self, Gateways, Planted, PlantedBug},
};

/// What a run of gateways has beside the options of all runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Run kick-out gateways over the stores, and clients that throw each other out
    #[arg(long, conflicts_with_all = ["faults", "workloads", "each", "only"])]
    pub(crate) gateways: bool,
    /// With --gateways: how many nodes
    #[arg(
        long,
        default_value_t = 2,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=9),
        requires = "gateways"
    )]
    nodes: u32,
    /// With --gateways: faults to draw from (default: all that the store can have)
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "KINDS",
        requires = "gateways"
    )]
    node_faults: Vec<NodeBreak>,
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
pub(crate) struct Run<'a> {
    pub(crate) stores: &'a [Kind],
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) keep: Option<&'a PathBuf>,
    pub(crate) out: Option<&'a PathBuf>,
    /// Plant each known bug instead, and see that it is caught.
    pub(crate) planted: bool,
}

/// Runs it.
pub(crate) async fn run(options: &Options, run: &Run<'_>) -> Result<ExitCode> {
    let good = if run.planted {
        planted(options, run).await?
    } else {
        honest(options, run).await?
    };
    say(&format!("seed {}", run.seed))?;
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn plan(options: &Options, run: &Run<'_>, store: Kind) -> Plan {
    let all = NodeBreak::value_variants().iter().copied();
    let wanted =
        |it: &NodeBreak| options.node_faults.is_empty() || options.node_faults.contains(it);
    Plan {
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

async fn honest(options: &Options, run: &Run<'_>) -> Result<bool> {
    let mut good = true;
    for store in run.stores {
        if *store == Kind::Memory {
            say("memory     not applicable: nodes are processes, and its store is in one of them")?;
            continue;
        }
        let plan = plan(options, run, *store);
        let played = Box::pin(play(&plan))
            .await
            .with_context(|| format!("{} with seed {}", store.key(), run.seed))?;
        tell(&plan, &played)?;
        if !played.is_clean() {
            good = false;
            accuse(&plan, &played, run)?;
        }
        if let Some(folder) = run.out {
            let name = format!("gateways/{}-{}.json", store.key(), run.seed);
            report::keep(folder, &name, &published(&plan, &played))?;
            report::render(folder)?;
        }
    }
    Ok(good)
}

fn published(plan: &Plan, played: &Played) -> Gateways {
    let looked_at = played.report.looked_at.iter();
    let violations = played.report.violations.iter().map(ToString::to_string);
    Gateways {
        store: plan.store.key(),
        nodes: plan.nodes,
        seconds: plan.seconds,
        command: plan.command(),
        events: played.history.nodes.len(),
        seen: played.history.clients.len(),
        faults: played.faults.clone(),
        looked_at: looked_at
            .map(|(it, times)| (it.to_string(), *times))
            .collect(),
        broken: violations.chain(played.troubles.iter().cloned()).collect(),
    }
}

fn tell(plan: &Plan, played: &Played) -> Result<()> {
    let faults: u64 = played.faults.values().sum();
    say(&format!(
        "{:<10} {} nodes, {:>6} events, {:>5} things that clients saw, {faults:>3} faults; \
         looked at {}",
        plan.store.key(),
        plan.nodes,
        played.history.nodes.len(),
        played.history.clients.len(),
        played
            .report
            .looked_at
            .iter()
            .map(|(invariant, times)| format!("{invariant}:{times}"))
            .collect::<Vec<_>>()
            .join(" ")
    ))
}

fn accuse(plan: &Plan, played: &Played, run: &Run<'_>) -> Result<()> {
    let violations = played.report.violations.iter().map(ToString::to_string);
    let all: Vec<_> = violations.chain(played.troubles.iter().cloned()).collect();
    for broken in all.iter().take(10) {
        say(&format!("  BROKEN {broken}"))?;
    }
    if all.len() > 10 {
        say(&format!("  and {} more", all.len() - 10))?;
    }
    say(&format!("  repeat: {}", plan.command()))?;
    keep(plan, played, run)
}

fn keep(plan: &Plan, played: &Played, run: &Run<'_>) -> Result<()> {
    let Some(folder) = run.keep else {
        return Ok(());
    };
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let bug = plan.bug.map(|bug| format!("-{}", bug.key()));
    let bug = bug.unwrap_or_default();
    let name = format!("gateways-{}{bug}-{}.jsonl", plan.store.key(), plan.seed);
    let path = folder.join(name);
    fs::write(&path, played.history.to_lines()?).with_context(|| path.display().to_string())?;
    say(&format!("  history: {}", path.display()))
}

/// Seeds that are tried for one bug: whether it shows depends on what the processes do meanwhile.
const TRIES: u64 = 3;

/// Each bug on each store, and beside them honest nodes on the same seed.
async fn planted(options: &Options, run: &Run<'_>) -> Result<bool> {
    let bugs = match &options.node_bugs[..] {
        [] => NodeBug::value_variants(),
        some => some,
    };
    let mut hunted = Vec::new();
    for bug in bugs {
        let bug = hunt(*bug, options, run).await?;
        let word = if bug.found.is_some() {
            "caught"
        } else {
            "MISSED"
        };
        let found = bug.found.as_deref().unwrap_or_default();
        say(&format!("{word}  {:<26} {found}", bug.name))?;
        hunted.push(bug);
    }
    let mut twins = BTreeMap::new();
    for bug in &mut hunted {
        bug.twin_is_clean = match twins.get(&bug.seed) {
            Some(clean) => *clean,
            None => {
                let mut twin = plan(options, run, Kind::Redis);
                twin.seed = bug.seed;
                let played = Box::pin(play(&twin)).await?;
                if !played.is_clean() {
                    accuse(&twin, &played, run)?;
                }
                twins.insert(bug.seed, played.is_clean());
                played.is_clean()
            }
        };
    }
    let clean = hunted.iter().all(|it| it.twin_is_clean);
    let caught = hunted.iter().filter(|it| it.found.is_some()).count();
    say(&format!(
        "{caught} of {} caught; the honest nodes {}",
        hunted.len(),
        if clean { "are clean" } else { "ARE ACCUSED" }
    ))?;
    let good = caught == hunted.len() && clean;
    if let Some(folder) = run.out {
        let planted = Planted {
            command: format!(
                "distlock-lab chaos --gateways --planted --seconds {} --seed {}",
                run.seconds, run.seed
            ),
            unit: "events".into(),
            bugs: hunted,
        };
        report::keep(folder, "planted/gateways.json", &planted)?;
        report::render(folder)?;
    }
    Ok(good)
}

/// Looks for one bug on several seeds.
async fn hunt(bug: NodeBug, options: &Options, run: &Run<'_>) -> Result<PlantedBug> {
    let mut hunted = PlantedBug::of(&bug, Kind::Redis.key(), run.seed);
    for seed in run.seed..run.seed.saturating_add(TRIES) {
        let mut plan = plan(options, run, Kind::Redis);
        plan.bug = Some(bug);
        plan.seed = seed;
        hunted.seed = seed;
        if !bug.faults().is_empty() {
            plan.faults = bug.faults().to_vec();
        }
        let played = Box::pin(play(&plan))
            .await
            .with_context(|| format!("{} with seed {seed}", hunted.name))?;
        hunted.effort += u64::try_from(played.history.nodes.len())?;
        hunted.found = bug.found(&played.report);
        if hunted.found.is_some() {
            break;
        }
        keep(&plan, &played, run)?;
    }
    Ok(hunted)
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")?;
    Ok(())
}
