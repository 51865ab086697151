//! `distlock-lab chaos`.

use std::{collections::HashMap, fs, io::Write as _, path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::{ValueEnum, builder::PossibleValuesParser, error::ErrorKind};

use super::{
    controls::{self, Control},
    gateways,
    history::Entry,
    nemesis::Break,
    plants::Plant,
    published,
    run::{Plan, Played, play},
    stores::Kind,
    workload::Workload,
};
use crate::report::{self, Planted, PlantedBug};

/// Break stores at random, and check what locks on them were worth.
///
/// Starts private servers and worker processes that fight for locks, breaks them by faults drawn
/// from the seed, and judges everything that all of them saw. Exit code 1 means that a promise was
/// broken; the line that repeats the run is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  distlock-lab chaos --spawn sqlite,redis --seconds 60
  distlock-lab chaos --spawn redis --faults kill-server,stop-worker --seed 7
  distlock-lab chaos --planted
  distlock-lab chaos --controls --only set-nx-del,redlock")]
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
    pub(super) faults: Vec<Break>,
    /// What the workers do with the store (default: everything)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "USES")]
    workloads: Vec<Workload>,
    #[command(flatten)]
    gateways: gateways::Options,
    /// How long each store is broken
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(super) seconds: u64,
    /// Repeats the faults of an earlier run (default: drawn, and printed)
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Plant each known bug instead, and see that it is caught
    #[arg(long, group = "subjects")]
    planted: bool,
    /// Use locks that others write instead, and distlock beside each
    #[arg(long, group = "subjects", conflicts_with = "spawn")]
    controls: bool,
    /// With --planted or --controls: these bugs or controls only
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        requires = "subjects",
        value_parser = names()
    )]
    pub(super) only: Vec<String>,
    /// A run of its own for each kind of fault
    #[arg(long, conflicts_with = "planted")]
    pub(super) each: bool,
    /// Add the results to the report in this folder
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Where to keep the history of each run that broke a promise
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Everything that `--only` can name.
fn names() -> PossibleValuesParser {
    let bugs = Plant::value_variants()
        .iter()
        .map(ValueEnum::to_possible_value);
    let controls = Control::value_variants()
        .iter()
        .map(ValueEnum::to_possible_value);
    PossibleValuesParser::new(bugs.chain(controls).flatten())
}

/// The bugs or controls that `--only` names; all of them if it names none. A bug is no control:
/// that ends the program as any wrong argument does.
pub(super) fn chosen<T: ValueEnum + Clone>(only: &[String]) -> Vec<T> {
    if only.is_empty() {
        return T::value_variants().to_vec();
    }
    let one = |name: &String| {
        T::from_str(name, false).unwrap_or_else(|_| {
            let known = T::value_variants().iter().map(ValueEnum::to_possible_value);
            let known: Vec<_> = known.flatten().map(|it| it.get_name().to_owned()).collect();
            let told = format!("--only {name}: it must be one of {}\n", known.join(", "));
            clap::Error::raw(ErrorKind::InvalidValue, told).exit()
        })
    };
    only.iter().map(one).collect()
}

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
        planted(&chaos, seed).await
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

impl Chaos {
    /// A name for the results of these runs.
    fn name(&self, seed: u64) -> String {
        let stores: Vec<_> = self.spawn.iter().map(|it| it.key()).collect();
        let each = if self.each { "-each" } else { "" };
        format!("{}{each}-{seed}", stores.join("-"))
    }
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

pub(super) fn tell_broken(chaos: &Chaos, plan: &Plan, played: &Played) -> Result<()> {
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
    keep(chaos, &plan.store.key(), plan.seed, &played.history)
}

/// Writes a history into the folder for it, if there is one.
pub(super) fn keep(chaos: &Chaos, subject: &str, seed: u64, history: &[Entry]) -> Result<()> {
    let Some(folder) = &chaos.keep else {
        return Ok(());
    };
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(format!("{subject}-{seed}.jsonl"));
    let mut file = fs::File::create(&path).with_context(|| path.display().to_string())?;
    for entry in history {
        serde_json::to_writer(&mut file, entry)?;
        file.write_all(b"\n")?;
    }
    say(&format!("  history: {}", path.display()))
}

/// Seeds that are tried for one bug: whether it shows depends on what the processes do meanwhile.
const TRIES: u64 = 3;
/// How long the honest store is judged for each bug.
const TWIN_SECONDS: u64 = 5;

/// Each bug, and beside it the honest store on the same seed.
async fn planted(chaos: &Chaos, seed: u64) -> Result<ExitCode> {
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

pub(super) fn code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

pub(super) fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")?;
    Ok(())
}
