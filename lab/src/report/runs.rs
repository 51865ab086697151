//! The chapters about stores: the faults, and their effects on the locks.

use std::collections::BTreeMap;

use distlock_report::render::{self, Document};

use super::data::{RunFigures, RunSet, Times};

/// Adds all chapters about stores.
pub(super) fn store_chapters(commands: &[RunSet], page: &mut Document) {
    let all: Vec<&RunFigures> = commands.iter().flat_map(|it| &it.runs).collect();
    let mut by_store: BTreeMap<&str, Vec<&RunFigures>> = BTreeMap::new();
    for run in &all {
        by_store.entry(&run.store).or_default().push(run);
    }
    opening_paragraphs(&all, by_store.len(), page);
    by_store_chapter(&by_store, page);
    by_fault_chapter(&by_store, page);
    exceptions_chapter(&all, page);
    broken_chapter(&all, page);
}

/// Returns the number of faults of all kinds.
fn fault_count(run: &RunFigures) -> u64 {
    run.faults.values().sum()
}

/// Returns the number of excused violations.
fn excused_count(run: &RunFigures) -> u64 {
    run.excused.iter().map(|it| it.count).sum()
}

/// Returns the sum of one number over all runs.
fn sum(runs: &[&RunFigures], of: impl Fn(&RunFigures) -> u64) -> u64 {
    runs.iter().map(|run| of(run)).sum()
}

/// Returns the sum of one count over all runs.
fn count(runs: &[&RunFigures], of: impl Fn(&RunFigures) -> usize) -> usize {
    runs.iter().map(|run| of(run)).sum()
}

/// Adds the totals to the page, and an explanation of the numbers.
fn opening_paragraphs(all: &[&RunFigures], stores: usize, page: &mut Document) {
    let minutes = sum(all, |it| it.seconds) / 60;
    page.text(format!(
        "{} operations and {} faults in {} runs over {stores} stores, {minutes} minutes of them: \
         {} lost updates on fenced registers, {} on unfenced ones, {} broken promises.",
        sum(all, |it| it.operations),
        sum(all, fault_count),
        all.len(),
        count(all, |it| it.fenced_lost),
        sum(all, |it| it.unfenced_lost),
        count(all, |it| it.broken.len()),
    ));
    page.text(
        "A run starts private servers and processes that fight for their locks, breaks both by \
         faults drawn from a seed, and judges what all of them saw on one clock. The checker knows \
         the promises and nothing of how a store keeps them. A repeated run has the same faults; \
         how processes are scheduled is not in the seed.",
    );
    page.text(
        "Each lock protects two registers. The fenced one refuses a token that is lower than one \
         it has seen; the unfenced one takes every write. Excused are violations that the \
         documentation allows after the very fault they were matched to. Overlap is the longest \
         time for which a guard was valid beside newer ones of its lock, from the first of them to \
         the last, excused or not. Recovery is the time from the end of a fault to the next grant, \
         and notice is how long after its deadline, in running time, a holder was told of a loss: \
         half are faster than the first figure, and all but one in a hundred than the second.",
    );
}

/// Adds a table with a row for each store, and a chart of the times of recovery.
fn by_store_chapter(by_store: &BTreeMap<&str, Vec<&RunFigures>>, page: &mut Document) {
    page.chapter("By store");
    let row = |(store, runs): (&&str, &Vec<&RunFigures>)| {
        let longest = runs.iter().map(|it| it.longest_overlap_us).max();
        [
            (*store).to_owned(),
            sum(runs, |it| it.operations).to_string(),
            sum(runs, fault_count).to_string(),
            sum(runs, |it| it.grants).to_string(),
            sum(runs, |it| it.losses).to_string(),
            sum(runs, |it| it.fenced_writes).to_string(),
            sum(runs, |it| it.fenced_refusals).to_string(),
            count(runs, |it| it.fenced_lost).to_string(),
            sum(runs, |it| it.unfenced_lost).to_string(),
            ms_text(longest.unwrap_or_default()),
            sum(runs, excused_count).to_string(),
            count(runs, |it| it.broken.len()).to_string(),
            sum(runs, |it| it.undecided_records).to_string(),
        ]
    };
    page.table(
        [
            "store",
            "operations",
            "faults",
            "grants",
            "losses told",
            "fenced writes",
            "refused",
            "lost fenced",
            "lost unfenced",
            "overlap",
            "excused",
            "broken",
            "records undecided",
        ],
        by_store.iter().map(row).collect(),
    );
    let mixed = by_store
        .values()
        .flatten()
        .filter(|run| run.kinds.len() > 1);
    let rows: Vec<_> = mixed
        .map(|run| render::Times {
            store: run.store.clone(),
            label: run.store.clone(),
            median_ms: as_ms(run.recovery.median_us),
            p99_ms: as_ms(run.recovery.p99_us),
        })
        .collect();
    if !rows.is_empty() {
        page.times(
            "From the end of a fault to the next grant",
            "all kinds of faults; dot: half are faster; bar: to the slowest in a hundred",
            rows,
        );
    }
}

/// Adds a table for each store, with a row for each run.
fn by_fault_chapter(by_store: &BTreeMap<&str, Vec<&RunFigures>>, page: &mut Document) {
    page.chapter("By store and fault");
    for (store, runs) in by_store {
        let ttl = runs.first().map(|it| it.ttl_ms).unwrap_or_default();
        page.section(format!("{store}, leases of {} to {} ms", ttl.0, ttl.1));
        let row = |run: &&RunFigures| {
            [
                match &run.kinds[..] {
                    [one] => one.clone(),
                    several => format!("{} kinds", several.len()),
                },
                run.operations.to_string(),
                fault_count(run).to_string(),
                run.fenced_lost.to_string(),
                run.unfenced_lost.to_string(),
                ms_text(run.longest_overlap_us),
                excused_count(run).to_string(),
                run.broken.len().to_string(),
                median_and_p99(&run.recovery),
                median_and_p99(&run.notice),
                format!("`{}`", run.command),
            ]
        };
        page.table(
            [
                "faults of",
                "operations",
                "faults",
                "lost fenced",
                "lost unfenced",
                "overlap",
                "excused",
                "broken",
                "recovery",
                "notice",
                "command",
            ],
            runs.iter().map(row).collect(),
        );
    }
}

/// Adds the violations that the documentation allows.
fn exceptions_chapter(all: &[&RunFigures], page: &mut Document) {
    let mut found: BTreeMap<[&str; 3], (u64, &str)> = BTreeMap::new();
    for run in all {
        for it in &run.excused {
            let of_kind = found.entry([&run.store, &it.fault, &it.promise]);
            of_kind.or_insert((0, &it.example)).0 += it.count;
        }
    }
    if found.is_empty() {
        return;
    }
    page.chapter("Documented exceptions");
    page.text(
        "A lock that is freed by hand, a store that forgets, a failover to a server that lacks \
         what was acknowledged, or a clock that is put forward may let a second holder in before \
         the first has heard of it. Each violation here was matched to such a fault.",
    );
    let row = |([store, fault, promise], (count, example)): (&[&str; 3], &(u64, &str))| {
        [
            (*store).to_owned(),
            (*fault).to_owned(),
            (*promise).to_owned(),
            count.to_string(),
            (*example).to_owned(),
        ]
    };
    page.table(
        ["store", "after", "promise", "times", "for example"],
        found.iter().map(row).collect(),
    );
}

/// Adds a list of the broken promises, if there are any.
fn broken_chapter(all: &[&RunFigures], page: &mut Document) {
    let entry = |run: &&RunFigures| {
        let told = run.broken.iter().map(|it| {
            format!(
                "{}: {}: {} (`{}`)",
                run.store, it.promise, it.detail, run.command
            )
        });
        told.collect::<Vec<_>>()
    };
    let entries: Vec<_> = all.iter().flat_map(entry).collect();
    if !entries.is_empty() {
        page.chapter("Broken promises");
        page.list(entries);
    }
}

/// Converts microseconds to milliseconds, for a chart.
fn as_ms(us: u64) -> f64 {
    f64::from(u32::try_from(us).unwrap_or(u32::MAX)) / 1000.0
}

/// Returns microseconds as a text in milliseconds.
fn ms_text(us: u64) -> String {
    format!("{} ms", us / 1000)
}

/// Returns the median and the 99th percentile as a text.
fn median_and_p99(times: &Times) -> String {
    if times.count == 0 {
        return "–".into();
    }
    format!("{} / {} ms", times.median_us / 1000, times.p99_us / 1000)
}
