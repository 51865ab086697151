//! The page: charts and totals first, and every run behind them.

use std::collections::BTreeMap;

use distlock_report::render::{Chart, Document, RangeRow};

use super::{
    data::{ControlReport, ControlRow, FoundBug, PlantedBugs, RunFigures, Times},
    folder::ReportData,
};

/// All runs of each store.
type ByStore<'a> = BTreeMap<&'a str, Vec<&'a RunFigures>>;

/// Makes the page from its data.
pub(super) fn document(data: &ReportData) -> Document {
    let mut page = Document::new("What locks are worth while things break");
    let all: Vec<&RunFigures> = data.runs.iter().flat_map(|it| &it.runs).collect();
    let mut by_store = ByStore::new();
    for run in &all {
        by_store.entry(&run.store).or_default().push(run);
    }
    page.text(&format!(
        "A run starts private servers and processes that fight for their locks, breaks both by \
         faults drawn from a seed, and judges what all of them saw on one clock. {} operations and \
         {} faults in {} runs over {} stores, {} minutes of them: {} lost \
         updates on fenced registers, {} on unfenced ones, {} broken promises.",
        sum(&all, |it| it.operations),
        sum(&all, fault_count),
        all.len(),
        by_store.len(),
        sum(&all, |it| it.seconds) / 60,
        sum(&all, |it| it.fenced_lost as u64),
        sum(&all, |it| it.unfenced_lost),
        sum(&all, |it| it.broken.len() as u64),
    ));
    page.charts(mixed_chart(
        "recovery",
        "From the end of a fault to the next grant",
        &by_store,
        |it| it.recovery,
    ));
    store_chapter(&by_store, &mut page);
    fault_chapter(&by_store, &mut page);
    exceptions_chapter(&all, &mut page);
    let broken = all.iter().flat_map(|run| {
        let of_run = run.broken.iter();
        of_run.map(|it| {
            format!(
                "{}: {}: {} (`{}`)",
                run.store, it.promise, it.detail, run.command
            )
        })
    });
    let broken: Vec<_> = broken.collect();
    if !broken.is_empty() {
        page.chapter("Broken promises");
        page.list(broken);
    }
    gateways_chapter(data, &mut page);
    simulation_chapter(data, &mut page);
    planted_chapter(&data.planted, &mut page);
    if let Some(controls) = &data.controls {
        controls_chapter(controls, &mut page);
    }
    page.chapter("Bugs that were found in distlock");
    if data.found.is_empty() {
        page.text("None yet.");
    } else {
        let row = |it: &FoundBug| [it.bug.clone(), it.seen_by.clone(), it.test.clone()];
        page.table(["bug", "seen by", "test"], data.found.iter().map(row));
    }
    method_chapter(data, &mut page);
    page
}

fn fault_count(run: &RunFigures) -> u64 {
    run.faults.values().sum()
}

fn excused_count(run: &RunFigures) -> u64 {
    run.excused.iter().map(|it| it.count).sum()
}

fn sum(runs: &[&RunFigures], of: impl Fn(&RunFigures) -> u64) -> u64 {
    runs.iter().map(|run| of(run)).sum()
}

/// A chart of times in the runs with all kinds of faults; `None` without such a run.
fn mixed_chart(
    name: &'static str,
    title: &str,
    by_store: &ByStore<'_>,
    times: fn(&RunFigures) -> Times,
) -> Option<Chart> {
    let as_us = |us: u64| f64::from(u32::try_from(us).unwrap_or(u32::MAX));
    let mixed = by_store
        .values()
        .flatten()
        .filter(|run| run.kinds.len() > 1);
    let rows = mixed.map(|run| RangeRow {
        store: run.store.clone(),
        label: run.store.clone(),
        middle: as_us(times(run).median_us),
        high: as_us(times(run).p99_us),
    });
    let rows: Vec<RangeRow> = rows.collect();
    let note = "all kinds of faults; dot: half are faster; bar: to the slowest in a hundred";
    (!rows.is_empty()).then(|| Chart::ranges(name, title, note, &rows))
}

/// Adds a table with a row for each store.
fn store_chapter(by_store: &ByStore<'_>, page: &mut Document) {
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
            sum(runs, |it| it.fenced_lost as u64).to_string(),
            sum(runs, |it| it.unfenced_lost).to_string(),
            ms_text(longest.unwrap_or_default()),
            sum(runs, excused_count).to_string(),
            sum(runs, |it| it.broken.len() as u64).to_string(),
            sum(runs, |it| it.undecided_records).to_string(),
        ]
    };
    let heading = "store|operations|faults|grants|losses told|fenced writes|refused|lost fenced|\
                   lost unfenced|overlap|excused|broken|records undecided";
    page.table(heading.split('|'), by_store.iter().map(row));
    page.text(
        "Each lock protects two registers: the fenced one refuses a token that is lower than one \
         it has seen, the unfenced one takes every write. Overlap: the longest time for which a \
         guard was valid beside newer ones of its lock, excused or not. Excused: the documentation \
         allows it after the very fault it was matched to.",
    );
}

/// Adds a table for each store, with a row for each run.
fn fault_chapter(by_store: &ByStore<'_>, page: &mut Document) {
    page.chapter("By store and fault");
    page.text(
        "Recovery: from the end of a fault to the next grant. Notice: how long after its deadline, \
         in running time, a holder was told of a loss. Half are faster than the first figure, and \
         all but one in a hundred than the second. A repeated run has the same faults; how \
         processes are scheduled is not in the seed.",
    );
    page.fold("Every run, with the command that repeats it");
    for (store, runs) in by_store {
        let ttl = runs.first().map(|it| it.ttl_ms).unwrap_or_default();
        page.section(&format!("{store}, leases of {} to {} ms", ttl.0, ttl.1));
        let row = |run: &&RunFigures| {
            [
                match &run.kinds[..] {
                    [one] => one.clone(),
                    several => format!("all {} kinds", several.len()),
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
        let heading = "faults of|operations|faults|lost fenced|lost unfenced|overlap|excused|\
                       broken|recovery|notice|command";
        page.table(heading.split('|'), runs.iter().map(row));
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
    page.fold("Every kind, with an example");
    let rows = found
        .into_iter()
        .map(|([store, fault, promise], (count, example))| {
            [store, fault, promise, &count.to_string(), example].map(str::to_owned)
        });
    page.table(["store", "after", "promise", "times", "for example"], rows);
}

/// Adds the chapter about gateways, if there are runs with gateways.
fn gateways_chapter(data: &ReportData, page: &mut Document) {
    if data.gateways.is_empty() {
        return;
    }
    page.chapter("The kick-out gateway");
    page.text(
        "Nodes of the gateway over one store, and clients that throw each other out, while nodes, \
         connections and the store are broken. The checker of the kick-out flow judges what nodes \
         reported and what clients saw.",
    );
    let rows = data.gateways.iter().map(|it| {
        let looked_at = it
            .looked_at
            .iter()
            .map(|(name, times)| format!("{name} {times}"));
        [
            it.store.clone(),
            it.nodes.to_string(),
            it.seconds.to_string(),
            it.events.to_string(),
            it.seen.to_string(),
            it.faults.values().sum::<u64>().to_string(),
            it.broken.len().to_string(),
            looked_at.collect::<Vec<_>>().join(", "),
            format!("`{}`", it.command),
        ]
    });
    let heading = "store|nodes|seconds|events|seen by clients|faults|broken|\
                   invariants put at risk, times|command";
    page.table(heading.split('|'), rows);
    page.list(data.gateways.iter().flat_map(|it| it.broken.clone()));
}

/// Adds the chapter about the simulation, if the simulation was run.
fn simulation_chapter(data: &ReportData, page: &mut Document) {
    let Some(simulated) = &data.simulated else {
        return;
    };
    page.chapter("Simulation");
    page.text(&format!(
        "The engine, the queue inside a process and the batcher in simulated time, over a network \
         that loses, delays and repeats. The seed decides everything, and all promises are checked \
         after every step. {} seeds, {} steps, {} seeds a minute: {}.",
        simulated.seeds,
        simulated.steps,
        simulated.seeds_a_minute,
        simulated
            .broken
            .as_deref()
            .unwrap_or("every promise was kept")
    ));
    page.command(&simulated.command);
}

/// Adds the chapter about planted bugs. `all` has the bugs by the part of distlock that they are
/// in.
fn planted_chapter(all: &BTreeMap<String, PlantedBugs>, page: &mut Document) {
    if all.is_empty() {
        return;
    }
    page.chapter("Planted bugs");
    page.text(
        "Each of these bugs is a layer around an honest part, and the same part without the bug is \
         judged on the same seed.",
    );
    page.list(all.iter().map(|(place, planted)| {
        let caught = planted.bugs.iter().filter(|it| it.found.is_some());
        let mut effort: Vec<u64> = caught.map(|it| it.effort).collect();
        effort.sort_unstable();
        let median = effort.get(effort.len() / 2).copied().unwrap_or_default();
        let (caught, bugs, unit) = (effort.len(), planted.bugs.len(), &planted.unit);
        format!("{place}: {caught} of {bugs} caught, after {median} {unit} in the median")
    }));
    page.fold("Every bug");
    for (place, planted) in all {
        page.section(place);
        page.command(&planted.command);
        let rows = planted.bugs.iter().map(|it| {
            [
                it.name.clone(),
                it.about.clone(),
                it.store.clone(),
                it.effort.to_string(),
                it.found.clone().unwrap_or_else(|| "MISSED".into()),
                if it.twin_is_clean { "clean" } else { "ACCUSED" }.into(),
            ]
        });
        page.table(
            ["bug", "meaning", "in", &planted.unit, "found", "without it"],
            rows,
        );
    }
}

/// Adds the chapter about locks that others write.
fn controls_chapter(controls: &ControlReport, page: &mut Document) {
    page.chapter("Controls: locks that others write");
    page.text(
        "The same workers, faults, referee and checker, with locks that people write or install. \
         Each is judged by what its own users believe: overlaps are pairs that believed to hold \
         one lock at one instant, and those after lost data are counted apart. The twin is \
         distlock on the same kind of store, on one server of it where the control has three, with \
         the faults of the same seed: broken counts every promise that was broken outside the \
         documented exceptions. An unfenced register can lose an update without an overlap: a \
         holder that stands still between its check and its write is enough.",
    );
    let cells = |row: &ControlRow| {
        let (own, twin) = (&row.figures, &row.twin);
        [
            row.control.clone(),
            row.faults.join(", "),
            own.operations.to_string(),
            own.violations.to_string(),
            own.after_documented.to_string(),
            ms_text(own.longest_overlap_us),
            own.unfenced_lost.to_string(),
            twin.operations.to_string(),
            twin.violations.to_string(),
            twin.after_documented.to_string(),
            ms_text(twin.longest_overlap_us),
            twin.unfenced_lost.to_string(),
            twin.fenced_lost.unwrap_or_default().to_string(),
        ]
    };
    let heading = "control|faults|operations|overlaps|after lost data|longest|updates lost|\
                   twin: operations|broken|as documented|longest|lost unfenced|lost fenced";
    page.table(heading.split('|'), controls.rows.iter().map(cells));
    page.text(&format!(
        "Not applicable to controls, which have nothing of the kind: {}. Recovery, the time that \
         calls take, and memory are not judged.",
        controls.not_applicable.join("; ")
    ));
    page.fold("Each control, how to repeat it, and one kind of fault at a time");
    page.list(controls.rows.iter().map(|row| {
        format!(
            "{} ({}, {}, seed {}): {} For example {}. `{}`",
            row.control,
            row.store,
            row.server,
            row.seed,
            row.about,
            row.figures.example.as_deref().unwrap_or("nothing was seen"),
            row.command
        )
    }));
    if !controls.by_fault.is_empty() {
        let rows = controls.by_fault.iter().map(|row| {
            [
                row.control.clone(),
                row.faults.join(", "),
                row.figures.violations.to_string(),
                row.twin.violations.to_string(),
                format!("`{}`", row.command),
            ]
        });
        page.table(
            ["control", "fault", "overlaps", "twin: broken", "command"],
            rows,
        );
    }
}

/// Adds the chapter about servers, machine and commands.
fn method_chapter(data: &ReportData, page: &mut Document) {
    page.chapter("Conditions and commands");
    let runs = data.runs.iter().flat_map(|it| &it.runs);
    let servers: BTreeMap<_, _> = runs.map(|it| (&it.store, &it.server)).collect();
    let machine = data.runs.first().map_or(&[][..], |it| &it.machine);
    let machine = machine
        .iter()
        .map(|(label, value)| [label.clone(), value.clone()]);
    let servers = servers
        .into_iter()
        .map(|(store, server)| [store.clone(), server.clone()]);
    page.table(["", ""], machine.chain(servers));
    let dates = data.runs.iter().map(|it| it.date.as_str());
    if let (Some(first), Some(last), Some(any)) =
        (dates.clone().min(), dates.max(), data.runs.first())
    {
        page.text(&format!(
            "distlock {}, begun from {first} to {last}; several runs shared the machine at a time. \
             All servers are private and listen on this machine. Slow and full disks are left out.",
            any.version
        ));
    }
    page.text(
        "The commands are those of `cargo run -p distlock-lab --`; `scripts/robustness` runs all \
         of them. This page is made from the JSON files beside it:",
    );
    page.command("distlock-lab report --out docs/robustness");
}

fn ms_text(us: u64) -> String {
    format!("{} ms", us / 1000)
}

/// The median and the 99th percentile as a text.
fn median_and_p99(times: &Times) -> String {
    match times.count {
        0 => "–".into(),
        _ => format!("{} / {} ms", times.median_us / 1000, times.p99_us / 1000),
    }
}
