//! Prints the result of a run, and keeps histories.

use std::{fs, io::Write as _, process::ExitCode};

use anyhow::{Context as _, Result};

use super::{
    history::HistoryEntry,
    options::ChaosOptions,
    run::{RunPlan, RunResult},
};

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
