//! The lines that a command prints, and the histories that it keeps.

use std::{fs, io::Write as _, process::ExitCode};

use anyhow::{Context as _, Result};

use super::{
    history::Entry,
    options::Chaos,
    run::{Plan, Played},
};

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
