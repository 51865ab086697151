//! The chapters of the page.

use std::collections::BTreeMap;

use distlock_report::render::{Document, Times};

use super::Data;
use crate::chaos::{Cell, Planted, Promise, Spread};

pub(super) fn document(data: &Data) -> Document {
    let mut page = Document::new("What locks are worth while things break");
    opening(data, &mut page);
    stores(data, &mut page);
    faults(data, &mut page);
    exceptions(data, &mut page);
    broken(data, &mut page);
    if let Some(planted) = &data.planted {
        self::planted(planted, &mut page);
    }
    found(data, &mut page);
    method(data, &mut page);
    page
}

fn cells(data: &Data) -> impl Iterator<Item = &Cell> {
    data.runs.iter().flat_map(|runs| &runs.cells)
}

/// The runs of each store.
fn by_store(data: &Data) -> BTreeMap<String, Vec<&Cell>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for cell in cells(data) {
        all.entry(cell.plan.store.key()).or_default().push(cell);
    }
    all
}

fn fault_count(cell: &Cell) -> u64 {
    cell.verdict.faults.values().sum()
}

fn excused_count(cell: &Cell) -> u64 {
    cell.excused.iter().map(|it| it.count).sum()
}

/// Updates that fenced registers lost.
fn lost_fenced(cell: &Cell) -> usize {
    let broken = cell.verdict.violations.iter();
    broken
        .filter(|it| it.promise == Promise::FencedUpdates)
        .count()
}

fn sum(cells: &[&Cell], of: impl Fn(&Cell) -> u64) -> u64 {
    cells.iter().map(|cell| of(cell)).sum()
}

fn opening(data: &Data, page: &mut Document) {
    let all: Vec<&Cell> = cells(data).collect();
    let seconds = sum(&all, |it| it.plan.seconds);
    page.text(format!(
        "{} operations and {} faults in {} runs over {} stores, {:.1} hours of them: {} lost updates \
         on fenced registers, {} on unfenced ones, {} broken promises.",
        sum(&all, |it| it.verdict.operations),
        sum(&all, fault_count),
        all.len(),
        by_store(data).len(),
        f64::from(u32::try_from(seconds).unwrap_or(u32::MAX)) / 3600.0,
        all.iter().map(|it| lost_fenced(it)).sum::<usize>(),
        sum(&all, |it| it.verdict.unfenced_lost),
        all.iter()
            .map(|it| it.verdict.violations.len())
            .sum::<usize>(),
    ));
    page.text(
        "A run starts private servers and processes that fight for their locks, breaks both by \
         faults drawn from a seed, and judges what all of them saw on one clock. The checker knows \
         the promises and nothing of how a store keeps them. A repeated run has the same faults; \
         how processes are scheduled is not in the seed.",
    );
    page.text(
        "Each lock protects two registers. The fenced one refuses a token that is lower than one \
         it has seen; the unfenced one takes every write. *Excused* are violations that the \
         documentation allows after the very fault they were matched to. *Overlap* is the longest \
         time in which two guards of one lock were valid, excused or not. *Recovery* is the time \
         from the end of a fault to the next grant. *Notice* is how long after its deadline, in \
         running time, a holder was told of a loss; 0 is before or at the deadline.",
    );
}

fn stores(data: &Data, page: &mut Document) {
    page.chapter("By store");
    let mut rows = Vec::new();
    for (store, cells) in by_store(data) {
        let longest = cells.iter().map(|it| it.verdict.longest_overlap_us).max();
        rows.push([
            store,
            sum(&cells, |it| it.verdict.operations).to_string(),
            sum(&cells, fault_count).to_string(),
            sum(&cells, |it| it.verdict.grants).to_string(),
            sum(&cells, |it| it.verdict.losses).to_string(),
            cells
                .iter()
                .map(|it| lost_fenced(it))
                .sum::<usize>()
                .to_string(),
            sum(&cells, |it| it.verdict.unfenced_lost).to_string(),
            ms(longest.unwrap_or_default()),
            sum(&cells, excused_count).to_string(),
            cells
                .iter()
                .map(|it| it.verdict.violations.len())
                .sum::<usize>()
                .to_string(),
        ]);
    }
    page.table(
        [
            "store",
            "operations",
            "faults",
            "grants",
            "losses told",
            "lost fenced",
            "lost unfenced",
            "overlap",
            "excused",
            "broken",
        ],
        rows,
    );
    recovery(data, page);
}

/// Of the runs in which everything was broken at once.
fn recovery(data: &Data, page: &mut Document) {
    let rows = cells(data)
        .filter(|cell| cell.plan.faults.len() > 1)
        .map(|cell| Times {
            store: cell.plan.store.key(),
            label: cell.plan.store.key(),
            median_ms: as_ms(cell.verdict.recovery.median_us),
            p99_ms: as_ms(cell.verdict.recovery.p99_us),
        })
        .collect::<Vec<_>>();
    if !rows.is_empty() {
        page.times(
            "From the end of a fault to the next grant",
            "dot: half are faster; bar: to the slowest in a hundred",
            rows,
        );
    }
}

fn faults(data: &Data, page: &mut Document) {
    page.chapter("By store and fault");
    for (store, cells) in by_store(data) {
        let ttl = cells.first().map(|it| it.plan.ttl_ms).unwrap_or_default();
        page.section(format!("{store}, leases of {} to {} ms", ttl.0, ttl.1));
        let row = |cell: &&Cell| {
            let verdict = &cell.verdict;
            [
                match &cell.plan.faults[..] {
                    [one] => one.key(),
                    several => format!("{} kinds", several.len()),
                },
                verdict.operations.to_string(),
                fault_count(cell).to_string(),
                lost_fenced(cell).to_string(),
                verdict.unfenced_lost.to_string(),
                ms(verdict.longest_overlap_us),
                excused_count(cell).to_string(),
                verdict.violations.len().to_string(),
                two(&verdict.recovery),
                two(&verdict.notice),
                format!("`{}`", cell.command),
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
                "recovery p50 / p99",
                "notice p50 / p99",
                "command",
            ],
            cells.iter().map(row).collect(),
        );
    }
}

fn exceptions(data: &Data, page: &mut Document) {
    let mut all: BTreeMap<(String, String, String), (u64, &str)> = BTreeMap::new();
    for cell in cells(data) {
        for it in &cell.excused {
            let key = (
                cell.plan.store.key(),
                it.fault.clone(),
                it.promise.to_string(),
            );
            all.entry(key).or_insert((0, &it.example)).0 += it.count;
        }
    }
    if all.is_empty() {
        return;
    }
    page.chapter("Documented exceptions");
    page.text(
        "A lock that is freed by hand, or a store that forgets, may let a second holder in before \
         the first has heard of it. Each violation here was matched to such a fault; the tokens of \
         the two holders still differ.",
    );
    let row =
        |((store, fault, promise), (count, example)): ((String, String, String), (u64, &str))| {
            [store, fault, promise, count.to_string(), example.to_owned()]
        };
    page.table(
        ["store", "after", "promise", "times", "for example"],
        all.into_iter().map(row).collect(),
    );
}

fn broken(data: &Data, page: &mut Document) {
    let all: Vec<_> = cells(data)
        .flat_map(|cell| cell.verdict.violations.iter().map(move |it| (cell, it)))
        .collect();
    if all.is_empty() {
        return;
    }
    page.chapter("Broken promises");
    let entry = |(cell, it): &(&Cell, &crate::chaos::Violation)| {
        format!(
            "{}: {}: {} (`{}`)",
            cell.plan.store.key(),
            it.promise,
            it.detail,
            cell.command
        )
    };
    page.list(all.iter().map(entry).collect());
}

fn planted(planted: &Planted, page: &mut Document) {
    page.chapter("Planted bugs");
    let found = planted.bugs.iter().filter(|it| it.found.is_some());
    let mut operations: Vec<u64> = found.clone().map(|it| it.operations).collect();
    operations.sort_unstable();
    page.text(format!(
        "The checker is worth what it catches. Each of these bugs is a layer around an honest \
         store, and the honest store is judged on the same seed. {} of {} were caught, after {} \
         operations in the median.",
        operations.len(),
        planted.bugs.len(),
        operations
            .get(operations.len() / 2)
            .copied()
            .unwrap_or_default()
    ));
    page.command(&planted.command);
    let row = |it: &crate::chaos::PlantedBug| {
        [
            it.name.clone(),
            it.about.clone(),
            it.store.clone(),
            it.operations.to_string(),
            it.found.clone().unwrap_or_else(|| "MISSED".into()),
            if it.twin_is_clean { "clean" } else { "ACCUSED" }.into(),
        ]
    };
    page.table(
        ["bug", "meaning", "store", "operations", "found", "honest"],
        planted.bugs.iter().map(row).collect(),
    );
}

fn found(data: &Data, page: &mut Document) {
    page.chapter("Bugs that were found in distlock");
    let row = |it: &super::FoundBug| [it.bug.clone(), it.seen_by.clone(), it.test.clone()];
    page.table(
        ["bug", "seen by", "test"],
        data.found.iter().map(row).collect(),
    );
}

fn method(data: &Data, page: &mut Document) {
    page.chapter("How this was made");
    let mut servers: BTreeMap<String, String> = BTreeMap::new();
    for cell in cells(data) {
        servers.insert(cell.plan.store.key(), cell.server.clone());
    }
    let rows = servers.into_iter().map(|(store, server)| [store, server]);
    page.table(["store", "server"], rows.collect());
    let mut dates: Vec<&str> = data.runs.iter().map(|it| it.date.as_str()).collect();
    dates.sort_unstable();
    if let (Some(first), Some(last), Some(runs)) = (dates.first(), dates.last(), data.runs.first())
    {
        page.text(format!(
            "distlock {}, {first} to {last}. Several runs shared the machine at a time.",
            runs.version
        ));
        let machine = runs.machine.iter().cloned();
        page.table(
            ["machine", ""],
            machine.map(|(label, value)| [label, value]).collect(),
        );
    }
    page.text("Everything above is made from the JSON files beside this page:");
    page.command("distlock-lab report --out docs/robustness");
}

fn as_ms(us: u64) -> f64 {
    f64::from(u32::try_from(us).unwrap_or(u32::MAX)) / 1000.0
}

fn ms(us: u64) -> String {
    format!("{} ms", us / 1000)
}

fn two(spread: &Spread) -> String {
    if spread.count == 0 {
        return "–".into();
    }
    format!("{} / {} ms", spread.median_us / 1000, spread.p99_us / 1000)
}
