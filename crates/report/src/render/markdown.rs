//! The report as Markdown, for terminals and code hosts.

use std::fmt::Write as _;

use super::{
    costs::{Column, all_cost_tables},
    failures,
    peer_table::arm_with_description,
    sections,
    text::{join_names, missing_mark, number, range, time},
};
use crate::{
    compare::{
        ALTERNATIVES, Comparison, Figure, LEASE_LIMIT, PEERS_NOT_MEASURED, PROPERTIES,
        ScenarioKind, StoreFacts, advice, busy_warning, criteria, is_difference, load_sentence,
        prose, shown_by_faults, stores_without_peers,
    },
    results::statistics::Spread,
};

/// Renders the report as Markdown.
#[must_use]
pub fn markdown(comparison: &Comparison) -> String {
    let about = &comparison.about;
    let names: Vec<&str> = comparison
        .stores
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    let mut text = format!(
        "# Distributed locks, side by side\n\n{} behind one lock library, measured in one run on \
         one machine.\n\n\
         {}. distlock {}. Median of {} interleaved rounds, lowest to highest in brackets.\n",
        join_names(&names),
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
    for (title, note, columns) in all_cost_tables(comparison) {
        write_cost_table(comparison, title, &note, &columns, &mut text);
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
    if comparison.stores.iter().any(|it| !it.properties.is_empty()) {
        for property in PROPERTIES {
            let mut row = vec![property.title.to_owned()];
            row.extend(comparison.stores.iter().map(|store| {
                store
                    .properties
                    .iter()
                    .find(|it| it.property == property.key)
                    .map_or_else(
                        || "–".to_owned(),
                        |it| {
                            let cases = it.passed as usize + it.failed.len();
                            if cases == 0 {
                                return it.mark().to_owned();
                            }
                            format!("{} {} of {cases}", it.mark(), it.passed)
                        },
                    )
            }));
            rows.push(row);
        }
    }
    for (title, marks) in shown_by_faults(comparison) {
        let mut row = vec![title.to_owned()];
        row.extend(marks.into_iter().map(str::to_owned));
        rows.push(row);
    }
    let declared: Vec<_> = comparison
        .stores
        .iter()
        .map(sections::capability_rows)
        .collect();
    if let Some(first) = declared.iter().flatten().next() {
        for (at, (label, _)) in first.iter().enumerate() {
            let mut row = vec![(*label).to_owned()];
            row.extend(declared.iter().map(|all| {
                all.as_ref()
                    .and_then(|all| all.get(at))
                    .map_or_else(|| "–".to_owned(), |(_, value)| value.clone())
            }));
            rows.push(row);
        }
    }
    write_table(text, &heading, &rows);
    for (store, said) in sections::failed_cases(comparison) {
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
                sections::durability_text(store),
                prose.promise,
                prose.breaks
            );
        }
    }
}

/// Writes one table of costs. A table without any figure is left out.
fn write_cost_table(
    comparison: &Comparison,
    title: &str,
    note: &str,
    columns: &[Column],
    text: &mut String,
) {
    let columns: Vec<&Column> = columns
        .iter()
        .filter(|column| {
            comparison
                .figures
                .iter()
                .any(|it| it.experiment == column.experiment && it.measure == column.measure)
        })
        .collect();
    if columns.is_empty() {
        return;
    }
    let _ = write!(text, "\n### {title}\n\n{note}\n\n");
    let mut heading = vec!["store".to_owned()];
    heading.extend(columns.iter().map(|column| column.heading.clone()));
    let rows: Vec<_> = comparison
        .stores
        .iter()
        .map(|store| {
            let mut row = vec![store.name.clone()];
            row.extend(columns.iter().map(|column| cell(comparison, store, column)));
            row
        })
        .collect();
    write_table(text, &heading, &rows);
}

/// One cell: the median with its range in bold if it is the best, the word for a failure, or a
/// dash.
fn cell(comparison: &Comparison, store: &StoreFacts, column: &Column) -> String {
    let figure = comparison.figure(&store.key, &column.experiment, column.measure);
    if figure.is_some_and(|it| it.missing.is_some()) {
        return missing_mark(store).into();
    }
    let Some(spread) = figure.and_then(Figure::spread) else {
        return "–".into();
    };
    let best = column.best_store(comparison) == Some(&store.key);
    let middle = (column.show)(spread.median);
    let middle = if best {
        format!("**{middle}**")
    } else {
        middle
    };
    format!("{middle}{}", range_suffix(spread, column.show))
}

/// The range in brackets, to print after a number; nothing when both ends are printed alike.
fn range_suffix(spread: Spread, show: fn(f64) -> String) -> String {
    if show(spread.low) == show(spread.high) {
        return String::new();
    }
    format!(" ({})", range(spread, show))
}

/// Writes the section on faults. Without a scenario, writes nothing.
fn write_scenarios(comparison: &Comparison, text: &mut String) {
    if comparison.scenarios.is_empty() {
        return;
    }
    text.push_str("\n## Behaviour under failure\n");
    for kind in ScenarioKind::ALL {
        let all: Vec<_> = comparison
            .scenarios
            .iter()
            .filter(|it| it.kind == kind)
            .collect();
        if all.is_empty() {
            continue;
        }
        let _ = write!(
            text,
            "\n### {}\n\n{}\n\n",
            kind.title(),
            failures::describe_fault(kind)
        );
        for scenario in all {
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
        let name = comparison
            .store(&run.store)
            .map_or(run.store.as_str(), |it| it.name.as_str());
        let workload = run.workload.map_or("", crate::Workload::as_str);
        let _ = write!(
            text,
            "\n### {name}: {workload}, {} {}\n\n",
            run.callers,
            if run.callers == 1 {
                "caller"
            } else {
                "callers"
            }
        );
        if let Some(why) = &run.missing {
            let _ = writeln!(text, "Not measured: {}", joined_lines(why));
            continue;
        }
        let rows: Vec<_> = run
            .figures
            .iter()
            .map(|figures| {
                let shown = |spread: Option<Spread>, show: fn(f64) -> String| {
                    spread.map_or_else(
                        || "–".to_owned(),
                        |it| format!("{}{}", show(it.median), range_suffix(it, show)),
                    )
                };
                let ratio = run
                    .ratios
                    .iter()
                    .find(|it| it.arm == figures.arm)
                    .and_then(|it| it.cycles_per_second)
                    .map_or_else(
                        || "–".to_owned(),
                        |it| {
                            let bold = if is_difference(it, number) { "**" } else { "" };
                            format!(
                                "{bold}× {}{bold}{}",
                                number(it.median),
                                range_suffix(it, number)
                            )
                        },
                    );
                vec![
                    arm_with_description(&figures.arm),
                    shown(figures.cycles_per_second, number),
                    shown(figures.p50_us, time),
                    shown(figures.p99_us, time),
                    ratio,
                ]
            })
            .collect();
        let heading = [
            "way",
            "cycles a second",
            "half within",
            "99 % within",
            "over the first",
        ]
        .map(str::to_owned);
        write_table(text, &heading, &rows);
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
