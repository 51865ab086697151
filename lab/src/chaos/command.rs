//! `distlock-lab chaos`.

use std::{fs, io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;

use super::{
    nemesis::Break,
    plants::Plant,
    report::{self, Cell},
    run::{Plan, Played, play},
    stores::Kind,
};

/// Break stores at random, and check what locks on them were worth.
///
/// Starts private servers and worker processes that fight for locks, breaks them by faults drawn
/// from the seed, and judges everything that all of them saw. Exit code 1 means that a promise was
/// broken; the line that repeats the run is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  distlock-lab chaos --spawn sqlite,redis --seconds 60
  distlock-lab chaos --spawn redis --faults kill-server,stop-worker --seed 7
  distlock-lab chaos --planted")]
pub(crate) struct Chaos {
    /// Stores to break, one run each
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "STORES",
        default_value = "memory,sqlite"
    )]
    spawn: Vec<Kind>,
    /// Faults to draw from (default: all that the store can have)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS")]
    faults: Vec<Break>,
    /// How long each store is broken
    #[arg(long, default_value_t = 20, value_name = "N")]
    seconds: u64,
    /// Repeats the faults of an earlier run (default: drawn, and printed)
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Plant each known bug instead, and see that it is caught
    #[arg(long)]
    planted: bool,
    /// With --planted: these bugs only
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "BUGS",
        requires = "planted"
    )]
    only: Vec<Plant>,
    /// A run of its own for each kind of fault
    #[arg(long, conflicts_with = "planted")]
    each: bool,
    /// Write report.md and report.json into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "planted")]
    out: Option<PathBuf>,
    /// Where to keep the history of each run that broke a promise
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Runs it.
pub(crate) async fn run(chaos: Chaos) -> Result<ExitCode> {
    let seed = chaos.seed.unwrap_or_else(|| fastrand::u64(..));
    if chaos.planted {
        planted(&chaos, seed).await
    } else {
        stores(&chaos, seed).await
    }
}

async fn stores(chaos: &Chaos, seed: u64) -> Result<ExitCode> {
    let mut good = true;
    let mut cells = Vec::new();
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
            cells.push(Cell {
                command: plan.command(),
                plan,
                server: played.server,
                verdict: played.verdict,
            });
            // Written after each run, so that a run that fails loses no earlier one.
            if let Some(folder) = &chaos.out {
                report::write(folder, &cells)?;
            }
        }
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

fn tell_broken(chaos: &Chaos, plan: &Plan, played: &Played) -> Result<()> {
    for violation in played.verdict.broken().take(10) {
        say(&format!(
            "  BROKEN {}: {}",
            violation.promise, violation.detail
        ))?;
    }
    let more = played.verdict.broken().count().saturating_sub(10);
    if more > 0 {
        say(&format!("  and {more} more"))?;
    }
    say(&format!("  repeat: {}", plan.command()))?;
    if let Some(folder) = &chaos.keep {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let path = folder.join(format!("{}-{}.jsonl", plan.store.key(), plan.seed));
        let mut file = fs::File::create(&path).with_context(|| path.display().to_string())?;
        for entry in &played.history {
            serde_json::to_writer(&mut file, entry)?;
            file.write_all(b"\n")?;
        }
        say(&format!("  history: {}", path.display()))?;
    }
    Ok(())
}

/// Seeds that are tried for one bug: whether it shows depends on what the processes do meanwhile.
const TRIES: u64 = 3;

/// Each bug, and beside them an honest store on the same seed.
async fn planted(chaos: &Chaos, seed: u64) -> Result<ExitCode> {
    let bugs: Vec<Plant> = if chaos.only.is_empty() {
        Plant::value_variants().to_vec()
    } else {
        chaos.only.clone()
    };
    let mut operations = Vec::new();
    for bug in &bugs {
        let (took, found) = hunt(*bug, chaos.seconds, seed).await?;
        let (word, found) = match found {
            Some(found) => ("caught", found),
            None => ("MISSED", String::new()),
        };
        if word == "caught" {
            operations.push(took);
        }
        say(&format!(
            "{word}  {:<26} {took:>6} operations  {found}",
            bug.key()
        ))?;
    }
    let twin = Plan::of(Kind::Sqlite, chaos.seconds.min(10), seed);
    let honest = play(&twin).await?;
    let clean = honest.verdict.broken().next().is_none();
    if !clean {
        tell_broken(chaos, &twin, &honest)?;
    }
    operations.sort_unstable();
    say(&format!(
        "{} of {} caught, median {} operations; the honest store {}; seed {seed}",
        operations.len(),
        bugs.len(),
        operations
            .get(operations.len() / 2)
            .copied()
            .unwrap_or_default(),
        if clean { "is clean" } else { "IS ACCUSED" }
    ))?;
    Ok(code(operations.len() == bugs.len() && clean))
}

/// The operations that one bug took, and what was found if it was caught.
async fn hunt(bug: Plant, seconds: u64, seed: u64) -> Result<(u64, Option<String>)> {
    let mut operations = 0;
    for seed in seed..seed.saturating_add(TRIES) {
        let mut plan = Plan::of(bug.store(), seconds, seed);
        plan.plant = Some(bug);
        plan.ttl_ms = bug.ttl_ms();
        if let Some(faults) = bug.faults() {
            plan.faults = faults.to_vec();
        }
        let verdict = play(&plan)
            .await
            .with_context(|| format!("{} with seed {seed}", bug.key()))?
            .verdict;
        operations += verdict.operations;
        let found = verdict
            .broken()
            .find(|it| bug.breaks().contains(&it.promise));
        if let Some(found) = found {
            let told = format!("{}: {}", found.promise, found.detail);
            return Ok((operations, Some(told)));
        }
    }
    Ok((operations, None))
}

fn code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")?;
    Ok(())
}
