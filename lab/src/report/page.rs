//! The page: charts and totals first, and every run behind them. `robustness.md` is its text.

use std::collections::BTreeMap;

use askama::Template as _;
use distlock_report::render::{Chart, Document, RangeRow, cell, escape, images};

use super::{
    data::{ControlFigures, PlantedBugs, RunFigures, Times},
    folder::ReportData,
};

/// The values of the text. Its functions are those of this file.
#[derive(askama::Template)]
#[template(path = "robustness.md", escape = "none")]
struct Page<'a> {
    data: &'a ReportData,
    runs: Vec<&'a RunFigures>,
    by_store: BTreeMap<&'a str, Vec<&'a RunFigures>>,
    totals: [String; 12],
    minutes: u64,
    is_broken: bool,
    recovery: &'a [Chart],
    /// How often each violation was excused, by store, fault and promise, with an example.
    exceptions: BTreeMap<[&'a str; 3], (u64, &'a str)>,
    /// The version, and when the first and the last command began.
    begun: Option<(&'a str, &'a str, &'a str)>,
}

/// Makes the page from its data.
pub(super) fn document(data: &ReportData) -> Document {
    let runs: Vec<&RunFigures> = data.runs.iter().flat_map(|it| &it.runs).collect();
    let mut by_store: BTreeMap<&str, Vec<&RunFigures>> = BTreeMap::new();
    let mut exceptions: BTreeMap<[&str; 3], (u64, &str)> = BTreeMap::new();
    for run in &runs {
        by_store.entry(&run.store).or_default().push(run);
        for it in &run.excused {
            let of_kind = exceptions.entry([&run.store, &it.fault, &it.promise]);
            of_kind.or_insert((0, &it.example)).0 += it.count;
        }
    }
    let charts = recovery_chart(by_store.values().flatten().copied());
    let dates = data.runs.iter().map(|it| it.date.as_str());
    let page = Page {
        data,
        totals: totals(&runs),
        minutes: runs.iter().map(|it| it.seconds).sum::<u64>() / 60,
        is_broken: runs.iter().any(|it| !it.broken.is_empty()),
        recovery: &charts,
        begun: data
            .runs
            .first()
            .map(|it| it.version.as_str())
            .zip(dates.clone().min())
            .zip(dates.max())
            .map(|((version, first), last)| (version, first, last)),
        runs,
        by_store,
        exceptions,
    };
    let markdown = page.render().expect("a text in memory");
    Document::new(&markdown, charts)
}

/// The times to recover in the runs with all kinds of faults.
fn recovery_chart<'a>(runs: impl Iterator<Item = &'a RunFigures>) -> Vec<Chart> {
    let as_us = |us: u64| f64::from(u32::try_from(us).unwrap_or(u32::MAX));
    let rows = runs.filter(|run| run.kinds.len() > 1).map(|run| RangeRow {
        store: run.store.clone(),
        label: run.store.clone(),
        middle: as_us(run.recovery.median_us),
        high: as_us(run.recovery.p99_us),
    });
    let title = "From the end of a fault to the next grant";
    let note = "all kinds of faults; dot: half are faster; bar: to the slowest in a hundred";
    Chart::ranges("recovery", title, note, rows)
        .into_iter()
        .collect()
}

/// The sums of runs, in the order of the columns of the first table.
fn totals(runs: &[&RunFigures]) -> [String; 12] {
    let add = |of: fn(&RunFigures) -> u64| runs.iter().map(|it| of(it)).sum::<u64>().to_string();
    let longest = runs.iter().map(|it| it.longest_overlap_us).max();
    [
        add(|it| it.operations),
        add(|it| sum(&it.faults)),
        add(|it| it.grants),
        add(|it| it.losses),
        add(|it| it.fenced_writes),
        add(|it| it.fenced_refusals),
        add(|it| it.fenced_lost as u64),
        add(|it| it.unfenced_lost),
        ms_text(longest.unwrap_or_default()),
        add(|it| it.excused.iter().map(|it| it.count).sum()),
        add(|it| it.broken.len() as u64),
        add(|it| it.undecided_records),
    ]
}

fn totals_of(run: &RunFigures) -> [String; 12] {
    totals(&[run])
}

fn sum(counts: &BTreeMap<String, u64>) -> u64 {
    counts.values().sum()
}

fn list(counts: &BTreeMap<String, usize>) -> String {
    let all = counts.iter().map(|(name, times)| format!("{name} {times}"));
    all.collect::<Vec<_>>().join(", ")
}

fn kinds(run: &RunFigures) -> String {
    match &run.kinds[..] {
        [one] => one.clone(),
        several => format!("all {} kinds", several.len()),
    }
}

/// How many planted bugs were caught, and the effort for the bug in the middle.
fn caught(planted: &PlantedBugs) -> String {
    let caught = planted.bugs.iter().filter(|it| it.found.is_some());
    let mut effort: Vec<u64> = caught.map(|it| it.effort).collect();
    effort.sort_unstable();
    let median = effort.get(effort.len() / 2).copied().unwrap_or_default();
    let (caught, bugs, unit) = (effort.len(), planted.bugs.len(), &planted.unit);
    format!("{caught} of {bugs} caught, after {median} {unit} in the median")
}

/// The columns that a control and its twin have in common.
fn outcome(it: &ControlFigures) -> String {
    let (longest, lost) = (ms_text(it.longest_overlap_us), it.unfenced_lost);
    let (violations, documented) = (it.violations, it.after_documented);
    format!(
        "{} | {violations} | {documented} | {longest} | {lost}",
        it.operations
    )
}

fn ms_text(us: u64) -> String {
    format!("{} ms", us / 1000)
}

/// The median and the 99th percentile as a text.
impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.count {
            0 => f.write_str("–"),
            _ => write!(f, "{} / {} ms", self.median_us / 1000, self.p99_us / 1000),
        }
    }
}
