//! The output of a run: its history, and the files of the published report.

use std::{collections::BTreeMap, fs, io::Write as _, process::ExitCode};

use anyhow::{Context as _, Result};

use super::{
    history::HistoryEntry,
    options::ChaosOptions,
    run::{RunPlan, RunResult},
    verdict::{Promise, Spread, Violation},
};
use crate::report::{BrokenPromise, ExcusedPromise, RunFigures, RunSet, Times};

/// Prints the first broken promises and the command that repeats the run, and keeps the history.
pub(super) fn print_broken(chaos: &ChaosOptions, plan: &RunPlan, result: &RunResult) -> Result<()> {
    for violation in result.verdict.broken().take(10) {
        print_line(&format!(
            "  BROKEN {}: {}",
            violation.promise, violation.detail
        ))?;
    }
    let more = result.verdict.broken().count().saturating_sub(10);
    if more > 0 {
        print_line(&format!("  and {more} more"))?;
    }
    print_line(&format!("  repeat: {}", plan.command()))?;
    save_history(chaos, &plan.store.key(), plan.seed, &result.history)
}

/// Writes a history into the folder of `--keep`, if there is one.
pub(super) fn save_history(
    chaos: &ChaosOptions,
    subject: &str,
    seed: u64,
    history: &[HistoryEntry],
) -> Result<()> {
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
    print_line(&format!("  history: {}", path.display()))
}

/// Returns the exit code: 0 if no promise was broken, and 1 otherwise.
pub(super) fn exit_code(good: bool) -> ExitCode {
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

pub(super) fn print_line(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}")?;
    Ok(())
}

/// Starts the data of a command: the machine, the version and the date.
pub(super) fn empty_run_set() -> RunSet {
    RunSet {
        machine: distlock_report::machine(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        date: format!("{:.0}", jiff::Timestamp::now()),
        runs: Vec::new(),
    }
}

/// Converts a run and its verdict into the numbers of the report.
pub(super) fn run_figures(plan: &RunPlan, result: RunResult) -> RunFigures {
    let verdict = result.verdict;
    let (allowed, broken): (Vec<_>, Vec<_>) = verdict
        .violations
        .into_iter()
        .partition(|it| it.excused_by.is_some());
    let lost = |it: &&Violation| it.promise == Promise::FencedUpdates;
    RunFigures {
        store: plan.store.key(),
        server: result.server,
        kinds: plan.faults.iter().map(|it| it.key()).collect(),
        seconds: plan.seconds,
        seed: plan.seed,
        ttl_ms: plan.ttl_ms,
        command: plan.command(),
        operations: verdict.operations,
        grants: verdict.grants,
        faults: verdict.faults,
        losses: verdict.losses,
        fenced_writes: verdict.fenced_writes,
        fenced_refusals: verdict.fenced_refusals,
        fenced_lost: allowed.iter().chain(&broken).filter(lost).count(),
        unfenced_lost: verdict.unfenced_lost,
        undecided_records: verdict.undecided_records,
        longest_overlap_us: verdict.longest_overlap_us,
        recovery: times(verdict.recovery),
        notice: times(verdict.notice),
        excused: count_excused(allowed),
        broken: broken.into_iter().map(self::broken).collect(),
    }
}

const fn times(spread: Spread) -> Times {
    Times {
        count: spread.count,
        median_us: spread.median_us,
        p99_us: spread.p99_us,
        longest_us: spread.longest_us,
    }
}

fn broken(violation: Violation) -> BrokenPromise {
    BrokenPromise {
        promise: violation.promise.to_string(),
        detail: violation.detail,
    }
}

/// Counts excused violations by promise and kind of fault.
fn count_excused(violations: Vec<Violation>) -> Vec<ExcusedPromise> {
    let mut all: BTreeMap<(Promise, String), ExcusedPromise> = BTreeMap::new();
    for it in violations {
        // An excuse reads "force-release of lock 1", and only its kind is counted.
        let fault = it.excused_by.unwrap_or_default();
        let fault = fault.split(" of ").next().unwrap_or_default().to_owned();
        let of_kind = all.entry((it.promise, fault.clone()));
        let of_kind = of_kind.or_insert(ExcusedPromise {
            promise: it.promise.to_string(),
            fault,
            count: 0,
            example: it.detail,
        });
        of_kind.count += 1;
    }
    all.into_values().collect()
}
