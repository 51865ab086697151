//! The section of the report about controls: made from the data, and from nothing else.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::Control;
use crate::chaos::{
    nemesis::Break,
    verdict::{Promise, Verdict},
};

/// Promises that a control cannot make: it has no tokens, notices, tickets or records.
pub(super) const NOT_APPLICABLE: [Promise; 5] = [
    Promise::TokensRise,
    Promise::FencedUpdates,
    Promise::LossIsTold,
    Promise::TicketsOnce,
    Promise::Linearizable,
];

/// The data of the section.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(in crate::chaos) struct Controls {
    /// Each control under the faults that show its weakness.
    pub(super) rows: Vec<Row>,
    /// Each control under one kind of fault at a time, also where it is right.
    pub(super) by_fault: Vec<Row>,
}

/// A control and its twin, under the same faults of the same seed.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Row {
    pub(super) control: Control,
    pub(super) faults: Vec<Break>,
    pub(super) seconds: u64,
    pub(super) seed: u64,
    /// Runs of the control until it violated exclusion, this one included.
    pub(super) runs: u64,
    /// The command that repeats both.
    pub(super) command: String,
    /// The twin's server, in its own words.
    pub(super) server: String,
    pub(super) figures: Figures,
    pub(super) twin: Figures,
}

/// The figures of one run.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Figures {
    pub(super) operations: u64,
    pub(super) grants: u64,
    pub(super) faults: u64,
    /// Of a control: two believed at one instant. Of a twin: any promise that was broken outside
    /// the documented exceptions.
    pub(super) violations: usize,
    /// Of a control: those of the violations that came after a fault for which the documentation
    /// of distlock would excuse distlock. Of a twin: those that it excuses, which are not counted
    /// above.
    pub(super) after_documented: usize,
    pub(super) longest_overlap_us: u64,
    /// Updates that the unfenced registers lost.
    pub(super) unfenced_lost: u64,
    /// Updates that the fenced registers lost. `None` = not applicable: there is no token.
    pub(super) fenced_lost: Option<usize>,
    /// The first violation, in words.
    pub(super) example: Option<String>,
}

impl Figures {
    pub(super) fn of_control(verdict: &Verdict) -> Self {
        let all = &verdict.violations;
        let excusable = all.iter().filter(|it| it.excused_by.is_some());
        Self {
            violations: all.len(),
            after_documented: excusable.count(),
            fenced_lost: None,
            example: all.first().map(|it| it.detail.clone()),
            ..Self::common(verdict)
        }
    }

    pub(super) fn of_twin(verdict: &Verdict) -> Self {
        let broken = verdict.broken().count();
        let fenced = verdict
            .violations
            .iter()
            .filter(|it| it.promise == Promise::FencedUpdates);
        Self {
            violations: broken,
            after_documented: verdict.violations.len() - broken,
            fenced_lost: Some(fenced.count()),
            example: verdict.broken().next().map(|it| it.detail.clone()),
            ..Self::common(verdict)
        }
    }

    fn common(verdict: &Verdict) -> Self {
        Self {
            operations: verdict.operations,
            grants: verdict.grants,
            faults: verdict.faults.values().sum(),
            violations: 0,
            after_documented: 0,
            longest_overlap_us: verdict.longest_overlap_us,
            unfenced_lost: verdict.unfenced_lost,
            fenced_lost: None,
            example: None,
        }
    }
}

/// Writes `controls.md` and `controls.json`.
pub(super) fn write(folder: &Path, controls: &Controls) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let json = serde_json::to_string_pretty(controls)? + "\n";
    for (name, text) in [("controls.json", json), ("controls.md", section(controls))] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The section, as Markdown.
pub(in crate::chaos) fn section(controls: &Controls) -> String {
    let mut page = String::from(
        "## Controls: what others' locks were worth\n\n\
         The same workers, faults, referee and checker, with locks that people write or install. \
         Each is judged by what its own users believe; *overlaps* are pairs that believed to hold \
         one lock at one instant. The *twin* is distlock on the same kind of store, one server of \
         it where the control has three, with the faults of the same seed: *broken* counts every \
         promise of distlock that was broken outside the documented exceptions. A server that \
         lost its data is such an exception; a control's documentation may know it as well, so \
         overlaps after it are shown apart. A lost update of an unfenced register needs no \
         overlap: a holder that stands still between its check and its write is enough, and only \
         a fenced register keeps that from harm.\n\n",
    );
    let _ = writeln!(
        page,
        "Not applicable to controls, which have nothing of the kind: {}. Recovery, the time that \
         calls take, and memory are not judged.\n",
        NOT_APPLICABLE.map(|it| it.to_string()).join("; ")
    );
    main_table(&mut page, &controls.rows);
    page.push_str("\n### The controls, and how to repeat each\n\n");
    for row in &controls.rows {
        let _ = writeln!(
            page,
            "- **{}** ({}, {}): {} For example {}. `{}`",
            row.control.key(),
            row.control.store().key(),
            row.server,
            row.control.about(),
            row.figures.example.as_deref().unwrap_or("nothing was seen"),
            row.command
        );
    }
    if !controls.by_fault.is_empty() {
        fault_table(&mut page, &controls.by_fault);
    }
    page
}

fn main_table(page: &mut String, rows: &[Row]) {
    page.push_str(
        "| control | faults | operations | overlaps | of these after lost data | longest, ms | \
         updates lost | twin: operations | broken | as documented | longest, ms | lost unfenced | \
         lost fenced | seed |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for row in rows {
        let (own, twin) = (&row.figures, &row.twin);
        let kinds: Vec<_> = row.faults.iter().map(|it| it.key()).collect();
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.control.key(),
            kinds.join(", "),
            own.operations,
            own.violations,
            own.after_documented,
            own.longest_overlap_us / 1000,
            own.unfenced_lost,
            twin.operations,
            twin.violations,
            twin.after_documented,
            twin.longest_overlap_us / 1000,
            twin.unfenced_lost,
            twin.fenced_lost.unwrap_or_default(),
            row.seed,
        );
    }
}

/// Overlaps of each control under each fault alone.
fn fault_table(page: &mut String, rows: &[Row]) {
    let mut kinds: Vec<Break> = Vec::new();
    let mut controls: Vec<Control> = Vec::new();
    for row in rows {
        for fault in &row.faults {
            if !kinds.contains(fault) {
                kinds.push(*fault);
            }
        }
        if !controls.contains(&row.control) {
            controls.push(row.control);
        }
    }
    page.push_str(
        "\n### One kind of fault at a time\n\n\
         Overlaps of the control in one run of the fault alone, and after the slash broken \
         promises of its twin. 0 = the control was right in that run. A dash: its store cannot be \
         broken so. The command of each run is in `controls.json`.\n\n| fault |",
    );
    for control in &controls {
        let _ = write!(page, " {} |", control.key());
    }
    let _ = writeln!(page, "\n|---|{}", "---:|".repeat(controls.len()));
    for kind in kinds {
        let _ = write!(page, "| {} |", kind.key());
        for control in &controls {
            let row = rows
                .iter()
                .find(|row| row.control == *control && row.faults == [kind]);
            let cell = row.map_or_else(
                || "-".to_owned(),
                |row| format!("{} / {}", row.figures.violations, row.twin.violations),
            );
            let _ = write!(page, " {cell} |");
        }
        page.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::verdict::Violation;

    fn verdict(promise: Promise, excused_by: Option<&str>) -> Verdict {
        Verdict {
            operations: 70,
            grants: 7,
            unfenced_lost: 3,
            longest_overlap_us: 412_000,
            violations: vec![Violation {
                promise,
                at: 1,
                detail: "two at once".into(),
                excused_by: excused_by.map(Into::into),
            }],
            ..Verdict::default()
        }
    }

    fn row(control: Control, faults: &[Break], figures: Figures, twin: Figures) -> Row {
        Row {
            control,
            faults: faults.to_vec(),
            seconds: 5,
            seed: 11,
            runs: 1,
            command: "distlock-lab chaos ..".into(),
            server: "Redis 0".into(),
            figures,
            twin,
        }
    }

    #[test]
    fn an_excused_violation_counts_for_a_control_and_apart_for_a_twin() {
        let wiped = verdict(Promise::Exclusion, Some("wipe-server of redis"));
        let (control, twin) = (Figures::of_control(&wiped), Figures::of_twin(&wiped));
        assert_eq!((control.violations, control.after_documented), (1, 1));
        assert_eq!((twin.violations, twin.after_documented), (0, 1));
        assert_eq!((control.fenced_lost, twin.fenced_lost), (None, Some(0)));
        let broken = Figures::of_twin(&verdict(Promise::FencedUpdates, None));
        assert_eq!((broken.violations, broken.fenced_lost), (1, Some(1)));
    }

    #[test]
    fn the_section_tells_each_control_and_each_fault() {
        let figures = |excused| Figures::of_control(&verdict(Promise::Exclusion, excused));
        let twin = || Figures::of_twin(&Verdict::default());
        let controls = Controls {
            rows: vec![row(
                Control::Redlock,
                Control::Redlock.faults(),
                figures(Some("wipe-server of redis")),
                twin(),
            )],
            by_fault: vec![
                row(
                    Control::Redlock,
                    &[Break::WipeServer],
                    figures(None),
                    twin(),
                ),
                row(Control::SetNxDel, &[Break::CutLines], twin(), twin()),
            ],
        };
        let page = section(&controls);
        let has = |line: &str| assert!(page.contains(line), "{line}\n{page}");
        has(
            "| redlock | kill-server, wipe-server | 70 | 1 | 1 | 412 | 3 | 0 | 0 | 0 | 0 | 0 | 0 | \
             11 |",
        );
        has("For example two at once. `distlock-lab chaos ..`");
        has("| fault | redlock | set-nx-del |\n|---|---:|---:|\n");
        has("| wipe-server | 1 / 0 | - |\n| cut-lines | - | 0 / 0 |\n");
        has("tokens rise; no lost update on a fenced register");
    }
}
