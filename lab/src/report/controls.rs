//! The chapter about locks that others write.

use distlock_report::render::Document;

use super::data::{ControlReport, ControlRow};

/// Adds the whole chapter.
pub(super) fn controls_chapter(controls: &ControlReport, page: &mut Document) {
    page.chapter("Controls: locks that others write");
    page.text(
        "The same workers, faults, referee and checker, with locks that people write or install. \
         Each is judged by what its own users believe; overlaps are pairs that believed to hold \
         one lock at one instant. The twin is distlock on the same kind of store, one server of \
         it where the control has three, with the faults of the same seed: broken counts every \
         promise of distlock that was broken outside the documented exceptions. A server that \
         lost its data is such an exception; a control's documentation may know it as well, so \
         overlaps after it are shown apart. A lost update of an unfenced register needs no \
         overlap: a holder that stands still between its check and its write is enough, and only \
         a fenced register keeps that from harm.",
    );
    page.text(format!(
        "Not applicable to controls, which have nothing of the kind: {}. Recovery, the time that \
         calls take, and memory are not judged.",
        controls.not_applicable.join("; ")
    ));
    control_table(&controls.rows, page);
    page.section("Each control, and how to repeat it");
    let entry = |row: &ControlRow| {
        format!(
            "{} ({}, {}): {} For example {}. `{}`",
            row.control,
            row.store,
            row.server,
            row.about,
            row.figures.example.as_deref().unwrap_or("nothing was seen"),
            row.command
        )
    };
    page.list(controls.rows.iter().map(entry).collect());
    if !controls.by_fault.is_empty() {
        single_fault_table(&controls.by_fault, page);
    }
}

/// Adds the table of each control beside its twin.
fn control_table(rows: &[ControlRow], page: &mut Document) {
    let cells = |row: &ControlRow| {
        let (own, twin) = (&row.figures, &row.twin);
        [
            row.control.clone(),
            row.faults.join(", "),
            own.operations.to_string(),
            own.violations.to_string(),
            own.after_documented.to_string(),
            (own.longest_overlap_us / 1000).to_string(),
            own.unfenced_lost.to_string(),
            twin.operations.to_string(),
            twin.violations.to_string(),
            twin.after_documented.to_string(),
            (twin.longest_overlap_us / 1000).to_string(),
            twin.unfenced_lost.to_string(),
            twin.fenced_lost.unwrap_or_default().to_string(),
            row.seed.to_string(),
        ]
    };
    page.table(
        [
            "control",
            "faults",
            "operations",
            "overlaps",
            "after lost data",
            "longest, ms",
            "updates lost",
            "twin: operations",
            "broken",
            "as documented",
            "longest, ms",
            "lost unfenced",
            "lost fenced",
            "seed",
        ],
        rows.iter().map(cells).collect(),
    );
}

/// Adds a table with a row for each run of one fault alone.
fn single_fault_table(rows: &[ControlRow], page: &mut Document) {
    page.section("One kind of fault at a time");
    page.text("A control that shows no overlaps was right in that run.");
    let cells = |row: &ControlRow| {
        [
            row.control.clone(),
            row.faults.join(", "),
            row.figures.violations.to_string(),
            row.twin.violations.to_string(),
            format!("`{}`", row.command),
        ]
    };
    page.table(
        ["control", "fault", "overlaps", "twin: broken", "command"],
        rows.iter().map(cells).collect(),
    );
}
