//! Runs `distlock-lab simulate`.

use std::{
    io::Write as _,
    num::NonZeroUsize,
    ops::Range,
    path::PathBuf,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use distlock::{Clock as _, SystemClock};
use distlock_core::sync::Mutex;

use super::{
    planted_bugs::{EngineBug, Variant},
    promise::SeedResult,
    run::{run_batcher_seed, run_quorum_seed, run_ring_seed, run_seed},
};
use crate::report::{self, PlantedBugResult, PlantedBugs, SimulationFigures};

/// Run the engine in simulated time, one seed after another.
///
/// Each seed is a few processes that compete for locks of the in-memory store, over a network that
/// loses, delays and repeats requests; a batcher alone; such processes that compete for a lock of a
/// quorum, whose members forget; and for a lock of a ring, whose members change. All promises are
/// checked after every step. Exit code 1 means that a promise was broken; the command that repeats
/// the run is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  distlock-lab simulate
  distlock-lab simulate --seeds 10000
  distlock-lab simulate --seeds 1 --seed 7 --trace
  distlock-lab simulate --parts ring --seeds 1000
  distlock-lab simulate --planted")]
pub(crate) struct SimulateOptions {
    /// Number of seeds to run
    #[arg(long, default_value_t = 500, value_name = "N")]
    seeds: u64,
    /// The first seed (default: drawn, and printed)
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The parts to run: the engine on one store, the batcher alone, and the engine on a quorum and
    /// on a ring of stores
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "PARTS",
        default_values_t = [
            SimulatedPart::Engine,
            SimulatedPart::Batcher,
            SimulatedPart::Quorum,
            SimulatedPart::Ring,
        ]
    )]
    parts: Vec<SimulatedPart>,
    /// Plant each known bug, and check that it is found
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
    only: Vec<EngineBug>,
    /// Print every step
    #[arg(long)]
    trace: bool,
    /// Add the results to the report in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A part of a simulation.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum SimulatedPart {
    Engine,
    Batcher,
    Quorum,
    Ring,
}

impl SimulatedPart {
    fn run(self, seed: u64, trace: bool) -> Result<SeedResult> {
        let run = match self {
            Self::Engine => run_seed,
            Self::Batcher => run_batcher_seed,
            Self::Quorum => run_quorum_seed,
            Self::Ring => run_ring_seed,
        };
        run(seed, Variant::Honest, trace)
    }
}

/// Number of seeds that are tried for one bug before it counts as missed.
const TRIES: u64 = 300;

/// Runs the command outside of any runtime, because the simulation polls all tasks itself.
///
/// # Errors
/// Returns an error if the output is closed or no thread can be started.
pub(crate) fn run(simulate: &SimulateOptions) -> Result<ExitCode> {
    // The seed is short enough to type, and leaves room for more seeds after it.
    let seed = simulate.seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let good = if simulate.planted {
        run_planted(simulate, seed)?
    } else {
        run_seeds(simulate, seed)?
    };
    Ok(match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The first seed with a broken promise, and its result.
type FailedSeed = (u64, SeedResult);

/// Totals of all runs.
#[derive(Default)]
struct Totals {
    seeds: AtomicU64,
    steps: AtomicU64,
    /// The sum of the hashes of all traces, which does not depend on their order.
    hash: AtomicU64,
    changes: AtomicU64,
    moves: AtomicU64,
}

/// Runs all seeds without a planted bug, prints the result, and writes the result to the report if
/// the options name a folder for it. Returns whether every promise was kept.
fn run_seeds(simulate: &SimulateOptions, first: u64) -> Result<bool> {
    let begun = SystemClock.now();
    let range = first..first.saturating_add(simulate.seeds);
    let sum = Totals::default();
    let failed = run_all(range, &simulate.parts, simulate.trace, &sum)?;
    let took = SystemClock.now().since(begun).as_secs_f64();
    let (changes, moves) = (sum.changes.into_inner(), sum.moves.into_inner());
    let Totals {
        seeds, steps, hash, ..
    } = sum;
    let (seeds, steps, hash) = (seeds.into_inner(), steps.into_inner(), hash.into_inner());
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let a_minute = seeds as f64 * 60.0 / took.max(0.001);
    let verdict = match &failed {
        None => "every promise kept",
        Some(_) => "BROKEN",
    };
    if let Some((seed, outcome)) = &failed {
        print_failure(*seed, outcome)?;
    }
    print_line(&format!("trace {hash:016x}"))?;
    print_line(&format!(
        "{seeds} seeds from {first}, {steps} steps in {took:.1} s, {a_minute:.0} seeds a minute: \
         {verdict}"
    ))?;
    if changes > 0 {
        print_line(&format!(
            "{changes} changes of the members of a ring; {moves} times, the member that granted a \
             lock was another one than before"
        ))?;
    }
    if let Some(folder) = &simulate.out {
        let broken = failed
            .as_ref()
            .and_then(|(_, outcome)| outcome.broken.as_ref());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a figure for people"
        )]
        let simulated = SimulationFigures {
            command: format!(
                "distlock-lab simulate --seeds {} --seed {first}",
                simulate.seeds
            ),
            seeds,
            steps,
            seeds_a_minute: a_minute as u64,
            broken: broken.map(ToString::to_string),
        };
        report::write_part(folder, "simulation.json", &simulated)?;
        report::render(folder)?;
    }
    Ok(failed.is_none())
}

/// Runs all seeds on as many threads as there are processors, and returns the failure with the
/// lowest seed. No thread starts a new seed after a failure.
fn run_all(
    range: Range<u64>,
    parts: &[SimulatedPart],
    trace: bool,
    sum: &Totals,
) -> Result<Option<FailedSeed>> {
    let next = AtomicU64::new(range.start);
    let work = || -> Result<Option<FailedSeed>> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= range.end {
                return Ok(None);
            }
            sum.seeds.fetch_add(1, Ordering::Relaxed);
            for part in parts {
                let outcome = part.run(seed, trace)?;
                sum.steps.fetch_add(outcome.steps, Ordering::Relaxed);
                sum.hash.fetch_add(outcome.hash, Ordering::Relaxed);
                sum.changes.fetch_add(outcome.changes, Ordering::Relaxed);
                sum.moves.fetch_add(outcome.moves, Ordering::Relaxed);
                if outcome.broken.is_some() {
                    next.store(range.end, Ordering::Relaxed);
                    return Ok(Some((seed, outcome)));
                }
                if trace {
                    print_trace(&outcome)?;
                }
            }
        }
    };
    let results = on_all_processors(work)?;
    Ok(results.into_iter().flatten().min_by_key(|(seed, _)| *seed))
}

/// Runs the same work on as many threads as there are processors.
fn on_all_processors<T: Send>(work: impl Fn() -> Result<T> + Copy + Send) -> Result<Vec<T>> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| thread::Builder::new().spawn_scoped(scope, work))
            .collect();
        let joined = workers.into_iter().map(|worker| {
            let worker = worker?;
            worker.join().map_err(|_| anyhow!("a thread panicked"))?
        });
        joined.collect()
    })
}

/// Prints the broken promise of a seed, its trace, and the command that repeats the run.
fn print_failure(seed: u64, outcome: &SeedResult) -> Result<()> {
    let Some(broken) = &outcome.broken else {
        return Ok(());
    };
    print_line(&format!("seed {seed} BROKE {broken}"))?;
    print_trace(outcome)?;
    print_line(&format!(
        "repeat: distlock-lab simulate --seeds 1 --seed {seed} --trace"
    ))
}

/// Prints the lines of a trace that were kept.
fn print_trace(outcome: &SeedResult) -> Result<()> {
    outcome.lines.iter().try_for_each(|line| print_line(line))
}

/// Runs each planted bug until it is found, and its twin on the same seeds.
fn run_planted(simulate: &SimulateOptions, seed: u64) -> Result<bool> {
    let bugs: Vec<EngineBug> = match simulate.only.as_slice() {
        [] => EngineBug::value_variants().to_vec(),
        only => only.to_vec(),
    };
    // The last ones take longest: those of the quorum and of the ring.
    let left = Mutex::new(bugs.iter().enumerate().rev());
    let take = || left.lock().next();
    let judged = on_all_processors(|| {
        let mut judged = Vec::new();
        while let Some((at, bug)) = take() {
            judged.push((at, JudgedBug::new(*bug, seed, simulate.trace)?));
        }
        Ok(judged)
    })?;
    let mut judged: Vec<_> = judged.into_iter().flatten().collect();
    judged.sort_unstable_by_key(|(at, _)| *at);
    let mut result = Vec::new();
    for (_, JudgedBug { bug, lines }) in judged {
        lines.iter().try_for_each(|line| print_line(line))?;
        let word = match bug.found {
            Some(_) => "caught",
            None => "MISSED",
        };
        let found = bug.found.as_deref().unwrap_or_default();
        print_line(&format!(
            "{word}  {:<26} {:>4} seeds  {found}",
            bug.name, bug.effort
        ))?;
        result.push(bug);
    }
    let caught = result.iter().filter(|it| it.found.is_some()).count();
    let clean = result.iter().all(|it| it.twin_is_clean);
    print_line(&format!(
        "{caught} of {} caught; the twins on the same seeds {}; seed {seed}",
        result.len(),
        if clean { "are clean" } else { "ARE ACCUSED" }
    ))?;
    if let Some(folder) = &simulate.out {
        let planted = PlantedBugs {
            command: format!("distlock-lab simulate --planted --seed {seed}"),
            unit: "seeds".into(),
            bugs: result,
        };
        report::write_part(folder, "planted/simulation.json", &planted)?;
        report::render(folder)?;
    }
    Ok(caught == bugs.len() && clean)
}

/// A bug that was looked for, and its twins.
struct JudgedBug {
    bug: PlantedBugResult,
    /// The lines of a trace, and those of twins that were accused.
    lines: Vec<String>,
}

impl JudgedBug {
    /// Looks for a bug, and judges its twin on each seed that was tried.
    fn new(bug: EngineBug, first: u64, trace: bool) -> Result<Self> {
        let store = if bug.is_in_the_quorum() {
            "quorum"
        } else if bug.is_in_the_ring() {
            "ring"
        } else {
            "memory"
        };
        let mut result = PlantedBugResult::of(&bug, store.into(), first);
        let mut lines;
        (result.effort, result.found, lines) = find_bug(bug, first, trace)?;
        result.seed = first.saturating_add(result.effort - 1);
        result.twin_is_clean = true;
        for seed in first..=result.seed {
            if let Some(broken) = run_seed(seed, Variant::Twin(bug), false)?.broken {
                result.twin_is_clean = false;
                lines.push(format!("ACCUSED seed {seed} without the bug: {broken}"));
            }
        }
        Ok(Self { bug: result, lines })
    }
}

/// Returns the number of tried seeds, the violation that was found, and the lines of its trace.
fn find_bug(bug: EngineBug, first: u64, trace: bool) -> Result<(u64, Option<String>, Vec<String>)> {
    for tried in 0..TRIES {
        let seed = first.saturating_add(tried);
        let outcome = run_seed(seed, Variant::Planted(bug), trace)?;
        let found = outcome.broken.as_ref();
        if let Some(broken) = found.filter(|it| bug.may_break().contains(&it.promise)) {
            let found = Some(broken.to_string());
            let lines = if trace { outcome.lines } else { Vec::new() };
            return Ok((tried + 1, found, lines));
        }
    }
    Ok((TRIES, None, Vec::new()))
}

fn print_line(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")?;
    Ok(())
}
