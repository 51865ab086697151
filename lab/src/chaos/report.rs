//! The published report of runs: a page, and the figures behind it.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{run::Plan, verdict::Verdict};

/// One run of a report.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Cell {
    pub(crate) plan: Plan,
    /// The server's product and version, in its own words.
    pub(crate) server: String,
    /// The command that repeats the run.
    pub(crate) command: String,
    pub(crate) verdict: Verdict,
}

/// Writes `report.md` and `report.json`.
pub(crate) fn write(folder: &Path, cells: &[Cell]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let json = serde_json::to_string_pretty(cells)? + "\n";
    for (name, text) in [("report.json", json), ("report.md", page(cells))] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

fn page(cells: &[Cell]) -> String {
    let sum = |of: fn(&Verdict) -> u64| cells.iter().map(|it| of(&it.verdict)).sum::<u64>();
    let faults = |verdict: &Verdict| verdict.faults.values().sum::<u64>();
    let broken = |verdict: &Verdict| verdict.broken().count();
    let mut page = String::new();
    let _ = write!(
        page,
        "# What locks were worth while things broke\n\n\
         {} operations and {} faults in {} runs; {} promises broken. Fenced registers lost {} \
         updates, unfenced ones {}.\n\n\
         A run starts a private server and processes that fight for its locks, breaks both by \
         faults drawn from a seed, and judges what all of them saw. How processes are scheduled is \
         not in the seed, so a run that is repeated has the same faults and another history.\n\n\
         *Excused* are violations that the documentation allows after the fault they were matched \
         to: a lock that was freed by hand, or a store that was made to forget everything. \
         *Recovery* is the time from the end of a fault to the next grant. *Notice* is how long \
         after its deadline, in running time, a holder was told of a loss.\n\n",
        sum(|it| it.operations),
        cells.iter().map(|it| faults(&it.verdict)).sum::<u64>(),
        cells.len(),
        cells.iter().map(|it| broken(&it.verdict)).sum::<usize>(),
        cells
            .iter()
            .flat_map(|it| it.verdict.broken())
            .filter(|it| it.promise == super::verdict::Promise::FencedUpdates)
            .count(),
        sum(|it| it.unfenced_lost),
    );
    page.push_str(
        "| store | faults of | operations | faults | grants | lost unfenced | longest overlap, ms \
         | excused | broken | recovery p50 / p99, ms | notice p50 / max, ms |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for Cell { plan, verdict, .. } in cells {
        let kinds = match &plan.faults[..] {
            [one] => one.key(),
            several => format!("{} kinds", several.len()),
        };
        let ms = |us: u64| us / 1000;
        let _ = writeln!(
            page,
            "| {} | {kinds} | {} | {} | {} | {} | {} | {} | {} | {} / {} | {} / {} |",
            plan.store.key(),
            verdict.operations,
            faults(verdict),
            verdict.grants,
            verdict.unfenced_lost,
            ms(verdict.longest_overlap_us),
            verdict.violations.len() - broken(verdict),
            broken(verdict),
            ms(verdict.recovery.median_us),
            ms(verdict.recovery.p99_us),
            ms(verdict.notice.median_us),
            ms(verdict.notice.longest_us),
        );
    }
    page.push_str("\n## Servers and commands\n\n");
    for cell in cells {
        let _ = writeln!(page, "- {}: `{}`", cell.server, cell.command);
    }
    let found: Vec<_> = cells
        .iter()
        .flat_map(|cell| cell.verdict.broken().map(move |it| (cell, it)))
        .collect();
    if !found.is_empty() {
        page.push_str("\n## Broken promises\n\n");
        for (cell, it) in found {
            let _ = writeln!(
                page,
                "- {}: {}: {}",
                cell.plan.store.key(),
                it.promise,
                it.detail
            );
        }
    }
    page
}
