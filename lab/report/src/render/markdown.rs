//! The report as Markdown, for terminals and code hosts.

use std::fmt::Write as _;

use super::{
    costs, failures,
    figure_table::{Cell, FigureTable},
    peers, promises,
    text::store_names,
};
use crate::compare::{
    ALTERNATIVES, Comparison, LEASE_LIMIT, PEERS_NOT_MEASURED, advice, busy_warning, criteria,
    load_sentence, prose, stores_without_peers,
};

/// Renders the report as Markdown.
#[must_use]
pub fn markdown(comparison: &Comparison) -> String {
    let about = &comparison.about;
    let mut text = format!(
        "# Distributed locks, side by side\n\n{} behind one lock library, measured in one run on \
         one machine.\n\n\
         {}. distlock {}. Median of {} interleaved rounds, lowest to highest in brackets.\n",
        store_names(comparison),
        about.date,
        about.version,
        about.rounds
    );
    for remark in busy_warning(comparison).iter().chain(&about.remarks) {
        let _ = write!(text, "\n> {remark}\n");
    }
    for store in &comparison.stores {
        if let Some(why) = &store.stopped {
            let _ = write!(
                text,
                "\n**{} died half-way, so its later figures are missing:** {}\n",
                store.name,
                joined_lines(why)
            );
        }
    }
    text += "\n## Which one?\n\n";
    for it in advice(comparison) {
        let _ = writeln!(
            text,
            "- {}: **{}**. {}",
            it.need,
            it.pick,
            joined_lines(&it.because)
        );
    }
    text += "\nHow this advice is made:\n\n";
    for it in criteria() {
        let _ = writeln!(text, "- {it}");
    }
    write_alternatives(&mut text);
    write_promises(comparison, &mut text);
    text += "\n## What it costs\n";
    for (title, note, table) in costs::cost_tables(comparison) {
        let _ = write!(text, "\n### {title}\n\n{note}\n\n");
        write_figure_table(&mut text, &table);
    }
    for (store, experiment, why) in comparison.failures() {
        let _ = write!(
            text,
            "\n**{store} failed in {experiment}:** {}\n",
            joined_lines(why)
        );
    }
    write_scenarios(comparison, &mut text);
    write_peers(comparison, &mut text);
    text += "\n## How this was made\n\n";
    let _ = write!(
        text,
        "```sh\n{}\n```\n\n{}\n\n",
        about.command,
        load_sentence(comparison)
    );
    write_table(&mut text, &["".into(), "".into()], &{
        let machine = about.machine.iter().cloned();
        let stores = comparison
            .stores
            .iter()
            .map(|it| (it.name.clone(), format!("{}; {}", it.server, it.setup)));
        machine
            .chain(stores)
            .map(|(label, value)| vec![label, value])
            .collect::<Vec<_>>()
    });
    text
}

/// Writes the section on what to use instead of a lock.
fn write_alternatives(text: &mut String) {
    text.push_str("\n## When not to use a lock\n\n");
    for it in ALTERNATIVES {
        let _ = writeln!(text, "- {}: **{}**. {}", it.when, it.take, it.why);
    }
    let _ = write!(text, "\n{LEASE_LIMIT}\n");
}

/// Writes the table of promises, the failed cases, and a text about each store.
fn write_promises(comparison: &Comparison, text: &mut String) {
    text.push_str("\n## What each one promises\n\n");
    let mut heading = vec!["property".to_owned()];
    heading.extend(comparison.stores.iter().map(|it| it.name.clone()));
    let mut rows = Vec::new();
    for (title, marks) in promises::property_rows(comparison) {
        let mut row = vec![title.to_owned()];
        row.extend(marks.into_iter().map(|mark| match mark.cases {
            Some(cases) => format!("{} {cases}", mark.sign),
            None => mark.sign.to_owned(),
        }));
        rows.push(row);
    }
    if !promises::declaring_stores(comparison).is_empty() {
        let stores: Vec<_> = comparison.stores.iter().collect();
        for (label, values) in promises::capability_rows(&stores) {
            rows.push([vec![label.to_owned()], values].concat());
        }
    }
    write_table(text, &heading, &rows);
    for (store, said) in promises::failed_cases(comparison) {
        let _ = write!(text, "\n**{store}:** {}\n", joined_lines(&said));
    }
    text.push('\n');
    for store in &comparison.stores {
        if let Some(prose) = prose(&store.product) {
            let _ = writeln!(
                text,
                "- **{}** ({}; durability when measured: {}): {} What breaks it: {}",
                store.name,
                store.server,
                promises::durability_text(store),
                prose.promise,
                prose.breaks
            );
        }
    }
}

/// Writes a table of figures.
fn write_figure_table(text: &mut String, table: &FigureTable<'_>) {
    let rows = table.rows.iter().map(|row| {
        let mut cells = vec![row.label.clone()];
        cells.extend(row.cells.iter().map(cell));
        cells
    });
    write_table(text, &table.heading, &rows.collect::<Vec<_>>());
}

/// One cell: the median with its range, the word for a failure, or a dash.
fn cell(cell: &Cell<'_>) -> String {
    match cell {
        Cell::Empty => "–".into(),
        Cell::Failed { word, .. } => (*word).into(),
        Cell::Figure {
            median,
            marked,
            range,
        } => {
            let bold = if *marked { "**" } else { "" };
            let range = range.as_ref();
            let range = range.map_or_else(String::new, |(low, high)| format!(" ({low} to {high})"));
            format!("{bold}{median}{bold}{range}")
        }
    }
}

/// Writes the section on faults. Without a scenario, writes nothing.
fn write_scenarios(comparison: &Comparison, text: &mut String) {
    if comparison.scenarios.is_empty() {
        return;
    }
    text.push_str("\n## Behaviour under failure\n");
    for (kind, scenarios) in failures::scenarios_by_kind(comparison) {
        let _ = write!(
            text,
            "\n### {}\n\n{}\n\n",
            kind.title(),
            failures::describe_fault(kind)
        );
        for scenario in scenarios {
            let name = comparison
                .store(&scenario.store)
                .map_or(scenario.store.as_str(), |it| it.name.as_str());
            let _ = writeln!(
                text,
                "- {name}: {}",
                joined_lines(&failures::describe_outcome(scenario))
            );
        }
    }
}

/// Writes the section on other ways of locking in the same stores.
fn write_peers(comparison: &Comparison, text: &mut String) {
    text.push_str("\n## Other ways in the same stores\n\n");
    if comparison.peers.is_empty() {
        let _ = writeln!(text, "{PEERS_NOT_MEASURED}");
        return;
    }
    text.push_str(
        "Measured on the same servers in the same run, each table with its ways interleaved; the \
         first row is the plain one.\n",
    );
    for run in &comparison.peers {
        let title = peers::run_title(comparison, run);
        let _ = write!(text, "\n### {title}\n\n");
        match &run.missing {
            Some(why) => {
                let _ = writeln!(text, "Not measured: {}", joined_lines(why));
            }
            None => write_figure_table(text, &peers::peer_table(run)),
        }
    }
    if let Some(without) = stores_without_peers(comparison) {
        let _ = write!(text, "\n{without}\n");
    }
}

/// Writes a table. The first column is aligned to the left, and the others to the right.
pub(super) fn write_table(text: &mut String, heading: &[String], rows: &[Vec<String>]) {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells
            .iter()
            .map(|cell| joined_lines(cell).replace('|', "\\|"))
            .collect();
        format!("| {} |\n", cells.join(" | "))
    };
    text.push_str(&line(heading));
    text.push('|');
    for at in 0..heading.len() {
        text.push_str(if at == 0 { "---|" } else { "--:|" });
    }
    text.push('\n');
    for row in rows {
        text.push_str(&line(row));
    }
}

/// Joins all lines of a message into one line.
fn joined_lines(said: &str) -> String {
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}
