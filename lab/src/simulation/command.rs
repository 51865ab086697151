//! `distlock-lab simulate`.

use std::{
    io::Write as _,
    num::NonZeroUsize,
    ops::Range,
    process::ExitCode,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use anyhow::{Result, anyhow};
use clap::ValueEnum as _;
use distlock::{Clock as _, SystemClock};

use super::{
    plants::{Plant, Variant},
    run::{Outcome, play, play_batcher},
};

/// Run the engine in simulated time, one seed after the other.
///
/// Each seed is a few processes that fight for locks in the store in memory, over a network that
/// loses, delays and repeats, and a batcher by itself. All promises are checked after every step.
/// Exit code 1 means that one was broken; the command that repeats the run is printed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  distlock-lab simulate
  distlock-lab simulate --seeds 10000
  distlock-lab simulate --seeds 1 --seed 7 --trace
  distlock-lab simulate --planted")]
pub(crate) struct Simulate {
    /// How many seeds to run
    #[arg(long, default_value_t = 500, value_name = "N")]
    seeds: u64,
    /// The first of them (default: drawn, and printed)
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
    /// Print every step
    #[arg(long)]
    trace: bool,
}

/// Seeds that are tried for one bug before it is taken for missed.
const TRIES: u64 = 300;

/// Runs it, outside of any runtime: the simulation polls everything itself.
///
/// # Errors
/// When nothing can be printed, or no thread can be had.
pub(crate) fn run(simulate: &Simulate) -> Result<ExitCode> {
    // Small enough to be typed, and room for as many seeds after it as anybody wants.
    let seed = simulate.seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    let good = if simulate.planted {
        planted(simulate, seed)?
    } else {
        seeds(simulate, seed)?
    };
    Ok(match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A seed, and what came of it.
type Played = (u64, Outcome);

/// Totals over all runs.
#[derive(Default)]
struct Sum {
    seeds: AtomicU64,
    steps: AtomicU64,
    /// The hashes of all traces, in whichever order they were made.
    hash: AtomicU64,
}

fn seeds(simulate: &Simulate, first: u64) -> Result<bool> {
    let begun = SystemClock.now();
    let range = first..first.saturating_add(simulate.seeds);
    let sum = Sum::default();
    let failed = all(range, simulate.trace, &sum)?;
    let took = SystemClock.now().since(begun).as_secs_f64();
    let Sum { seeds, steps, hash } = sum;
    let (seeds, steps, hash) = (seeds.into_inner(), steps.into_inner(), hash.into_inner());
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let a_minute = seeds as f64 * 60.0 / took.max(0.001);
    let verdict = match &failed {
        None => "every promise kept",
        Some(_) => "BROKEN",
    };
    if let Some((seed, outcome)) = &failed {
        tell(*seed, outcome)?;
    }
    say(&format!("trace {hash:016x}"))?;
    say(&format!(
        "{seeds} seeds from {first}, {steps} steps in {took:.1} s, {a_minute:.0} seeds a minute: \
         {verdict}"
    ))?;
    Ok(failed.is_none())
}

/// Runs all seeds on as many threads as there are processors. The failure with the lowest seed. No
/// seed is begun after a failure.
fn all(range: Range<u64>, trace: bool, sum: &Sum) -> Result<Option<Played>> {
    let next = AtomicU64::new(range.start);
    let work = || -> Result<Option<Played>> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= range.end {
                return Ok(None);
            }
            sum.seeds.fetch_add(1, Ordering::Relaxed);
            for part in [play, play_batcher] {
                let outcome = part(seed, Variant::Honest, trace)?;
                sum.steps.fetch_add(outcome.steps, Ordering::Relaxed);
                sum.hash.fetch_add(outcome.hash, Ordering::Relaxed);
                if outcome.broken.is_some() {
                    next.store(range.end, Ordering::Relaxed);
                    return Ok(Some((seed, outcome)));
                }
                if trace {
                    lines(&outcome)?;
                }
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let results = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| thread::Builder::new().spawn_scoped(scope, work))
            .collect();
        let joined = workers.into_iter().map(|worker| {
            let worker = worker?;
            worker.join().map_err(|_| anyhow!("a thread broke off"))?
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    Ok(results.into_iter().flatten().min_by_key(|(seed, _)| *seed))
}

fn tell(seed: u64, outcome: &Outcome) -> Result<()> {
    let Some(broken) = &outcome.broken else {
        return Ok(());
    };
    say(&format!("seed {seed} BROKE {broken}"))?;
    lines(outcome)?;
    say(&format!(
        "repeat: distlock-lab simulate --seeds 1 --seed {seed} --trace"
    ))
}

fn lines(outcome: &Outcome) -> Result<()> {
    outcome.lines.iter().try_for_each(|line| say(line))
}

/// Each bug, until it is caught, and its twin on the same seed.
fn planted(simulate: &Simulate, seed: u64) -> Result<bool> {
    let bugs: Vec<Plant> = match simulate.only.as_slice() {
        [] => Plant::value_variants().to_vec(),
        only => only.to_vec(),
    };
    let (mut caught, mut accused) = (0, 0);
    for bug in &bugs {
        let (tried, found) = hunt(*bug, seed, simulate.trace)?;
        caught += usize::from(found.is_some());
        let (word, found) = match found {
            Some(found) => ("caught", found),
            None => ("MISSED", String::new()),
        };
        say(&format!(
            "{word}  {:<26} {tried:>4} seeds  {found}",
            bug.key()
        ))?;
        for seed in seed..seed.saturating_add(tried) {
            let twin = play(seed, Variant::Twin(*bug), false)?;
            if let Some(broken) = twin.broken {
                accused += 1;
                say(&format!("ACCUSED seed {seed} without the bug: {broken}"))?;
            }
        }
    }
    say(&format!(
        "{caught} of {} caught; the honest twins on the same seeds {}; seed {seed}",
        bugs.len(),
        if accused == 0 {
            "are clean"
        } else {
            "ARE ACCUSED"
        }
    ))?;
    Ok(caught == bugs.len() && accused == 0)
}

/// How many seeds it took, and what was found.
fn hunt(bug: Plant, first: u64, trace: bool) -> Result<(u64, Option<String>)> {
    for tried in 0..TRIES {
        let seed = first.saturating_add(tried);
        let outcome = play(seed, Variant::Planted(bug), trace)?;
        let found = outcome.broken.as_ref();
        if let Some(broken) = found.filter(|it| bug.breaks().contains(&it.promise)) {
            if trace {
                lines(&outcome)?;
            }
            return Ok((tried + 1, Some(broken.to_string())));
        }
    }
    Ok((TRIES, None))
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")?;
    Ok(())
}
