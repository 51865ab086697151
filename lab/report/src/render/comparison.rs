//! The page of a comparison: charts, one table, and everything else behind them. `comparison.md` is
//! its text.

use askama::Template as _;
use serde_json::Value;

use super::{
    charts::{Chart, Line, RangeRow, axis_number, axis_time},
    costs::{OVERVIEW, TABLES, spread_text},
    document::{Document, images},
    published::lock_servers,
};
use crate::{
    Workload,
    compare::{
        BUSY_PERCENT, Comparison, Measure, PROPERTIES, PeerRun, PropertyResult, Scenario,
        ScenarioKind, StoreFacts, durability, is_difference, shown_by_faults,
    },
    results::statistics::Spread,
    text::{Table, cell, escape, millis, number, time, with_separators},
};

/// The values of the text. Its functions and tables are those of this file.
#[derive(askama::Template)]
#[template(path = "comparison.md", escape = "none")]
struct Page<'a> {
    it: &'a Comparison,
    /// The charts at the top, of the costs, and of the faults.
    charts: &'a [Vec<Chart>; 3],
    /// The rounds in which other processes used so much of the processors that the figures
    /// suffered, and the median of their shares.
    busy: usize,
    busy_median: Option<String>,
    /// The longest lease of a scenario.
    lease: String,
    /// The stores on which the other ways were not measured.
    without_peers: Vec<&'a str>,
}

/// Makes the page of a comparison.
#[must_use]
pub fn comparison(it: &Comparison) -> Document {
    let busy = it.loads.iter().map(|it| it.others_percent);
    let busy: Vec<f64> = busy.filter(|share| *share >= BUSY_PERCENT).collect();
    let is_without = |key: &str| !it.peers.iter().any(|it| it.store == key);
    let without = it.stores.iter().filter(|it| is_without(&it.key));
    let latency = |experiment, title| latency_chart(it, experiment, title);
    let charts = [
        vec![
            latency("uncontended", "One cycle, one caller"),
            throughput_chart(it),
            latency("wakeup", "Wake-up of a waiter in another client"),
            latency(
                "takeover-cross",
                "Takeover of a client of another gateway node",
            ),
        ],
        vec![
            growth_chart(it),
            latency("handoff-2", "Hand-over inside a process"),
        ],
        FAULTS
            .iter()
            .map(|(kind, note)| fault_chart(it, *kind, note))
            .collect(),
    ];
    let charts = charts.map(|part| part.into_iter().flatten().collect());
    let page = Page {
        it,
        charts: &charts,
        busy: busy.len(),
        busy_median: Spread::from_values(busy).map(|it| number(it.median)),
        lease: whole_millis(
            it.scenarios
                .iter()
                .map(|it| it.ttl_ms)
                .max()
                .unwrap_or_default(),
        ),
        without_peers: without.map(|it| it.name.as_str()).collect(),
    };
    let markdown = page.render().expect("a text in memory");
    Document::new(&markdown, charts.into_iter().flatten().collect())
}

/// Cycles a second, by the number of callers.
fn throughput_chart(it: &Comparison) -> Option<Chart> {
    let note = "each caller its own name, by the number of callers";
    let (steps, lines) = lines(it, "independent", Measure::Rate);
    let steps: Vec<_> = steps.iter().map(u32::to_string).collect();
    Chart::lines(
        "throughput",
        "Lock cycles a second",
        note,
        &steps,
        &lines,
        axis_number,
    )
}

/// The time of a cycle, by the number of other locks that are held.
fn growth_chart(it: &Comparison) -> Option<Chart> {
    let (title, note) = (
        "One cycle while other locks are held",
        "one caller, by the number of held locks",
    );
    let (steps, lines) = lines(it, "idle", Measure::P50);
    let steps: Vec<_> = steps
        .into_iter()
        .map(|size| with_separators(size.into()))
        .collect();
    Chart::lines("idle", title, note, &steps, &lines, axis_time)
}

/// The sizes of a family of experiments, and a line for each store over them.
fn lines(it: &Comparison, family: &str, measure: Measure) -> (Vec<u32>, Vec<Line>) {
    let sizes = it.sizes(family);
    let line = |store: &StoreFacts| Line {
        store: store.product.clone(),
        label: store.name.clone(),
        values: sizes
            .iter()
            .map(|size| it.spread(&store.key, &format!("{family}-{size}"), measure))
            .map(|spread| spread.map(|it| it.median))
            .collect(),
    };
    let lines = it.stores.iter().map(line);
    let lines = lines
        .filter(|it| it.values.iter().any(Option::is_some))
        .collect();
    (sizes, lines)
}

/// A latency of every store; `None` when no store has it.
fn latency_chart(it: &Comparison, experiment: &'static str, title: &str) -> Option<Chart> {
    let median =
        |store: &StoreFacts, measure| Some(it.spread(&store.key, experiment, measure)?.median);
    let rows = it.stores.iter().filter_map(|store| {
        let middle = median(store, Measure::P50)?;
        Some(range_row(
            store,
            middle,
            median(store, Measure::P99).unwrap_or(middle),
        ))
    });
    let note = "dot: half are faster; bar: to the slowest in a hundred";
    Chart::ranges(experiment, title, note, sorted(rows))
}

/// The times after one kind of fault.
fn fault_chart(it: &Comparison, kind: ScenarioKind, note: &str) -> Option<Chart> {
    let played = it.scenarios.iter().filter(|it| it.kind == kind);
    let rows = played.filter_map(|scenario| {
        let us = measured_time(scenario)? * 1e3;
        Some(range_row(it.store(&scenario.store)?, us, us))
    });
    Chart::ranges(kind.key(), kind.title(), note, sorted(rows))
}

fn range_row(store: &StoreFacts, middle: f64, high: f64) -> RangeRow {
    RangeRow {
        store: store.product.clone(),
        label: store.name.clone(),
        middle,
        high,
    }
}

fn sorted(rows: impl Iterator<Item = RangeRow>) -> Vec<RangeRow> {
    let mut rows: Vec<RangeRow> = rows.collect();
    rows.sort_by(|a, b| a.middle.total_cmp(&b.middle));
    rows
}

/// A table with a column for each store, and a row for each label, whose cells `show` gives.
fn by_store<T>(
    it: &Comparison,
    rows: impl IntoIterator<Item = (&'static str, T)>,
    show: impl Fn(&T, &StoreFacts) -> String,
) -> Table {
    let names = it.stores.iter().map(|store| store.name.clone());
    let mut table = Table::new([String::new()].into_iter().chain(names));
    for (label, row) in rows {
        let cells = it.stores.iter().map(|store| show(&row, store));
        table.add_row([label.to_owned()].into_iter().chain(cells));
    }
    table
}

/// The marks of the conformance suite and of the faults.
fn properties(it: &Comparison) -> Table {
    let was_tested = it.stores.iter().any(|store| !store.properties.is_empty());
    let tested = PROPERTIES.iter().filter(|_| was_tested);
    let mut table = by_store(it, tested.map(|it| (it.title, it)), |property, store| {
        let mut results = store.properties.iter();
        let result = results.find(|it| it.property == property.key);
        result.map_or_else(|| "–".into(), PropertyResult::mark)
    });
    for (title, marks) in shown_by_faults(it) {
        table.add_row([title].into_iter().chain(marks).map(str::to_owned));
    }
    table
}

/// The capabilities that the stores declare.
fn capabilities(it: &Comparison) -> Table {
    let are_known = it.stores.iter().any(|store| !store.promises.is_empty());
    let rows = CAPABILITIES.into_iter().filter(|_| are_known);
    by_store(it, rows, |key, store| match store.promises.get(*key) {
        Some(Value::Bool(true)) => "yes".into(),
        Some(Value::Bool(false)) => "no".into(),
        Some(Value::String(word)) => word.replace('_', " "),
        Some(value) => value
            .as_u64()
            .map_or_else(|| "as asked".into(), whole_millis),
        None => "–".into(),
    })
}

/// The labels and the names of the shown capabilities.
const CAPABILITIES: [(&str, &str); 11] = [
    ("shared by", "reach"),
    ("guaranteed order of waiting processes", "fairness"),
    ("wake-up", "wakeup"),
    ("a lease hangs on", "lease"),
    ("clock that ends it", "expiry_clock"),
    ("tokens rise", "fencing"),
    ("shortest lease", "min_ttl_ms"),
    ("longest lease in this run", "max_lease_ms"),
    ("locks survive a restart", "survives_restart"),
    ("hand-over in one step", "hand_over"),
    ("tickets", "tickets"),
];

fn whole_millis(ms: u64) -> String {
    time(std::time::Duration::from_millis(ms).as_secs_f64() * 1e6)
}

/// The kinds of faults, and the measured times.
const FAULTS: [(ScenarioKind, &str); 4] = [
    (
        ScenarioKind::HolderKilled,
        "from SIGKILL to the grant of the next holder",
    ),
    (
        ScenarioKind::ServerKilled,
        "from SIGKILL until a lock can be taken, restart included",
    ),
    (
        ScenarioKind::ServerPaused,
        "from SIGSTOP until a lock can be taken again",
    ),
    (
        ScenarioKind::LeaderLost,
        "from SIGKILL of the deciding server until a lock can be taken",
    ),
];

/// The time that a scenario measures, in milliseconds.
fn measured_time(scenario: &Scenario) -> Option<f64> {
    match scenario.kind {
        ScenarioKind::HolderKilled => scenario.next_holder_ms,
        _ => scenario.usable_ms,
    }
}

/// The outcomes of the faults.
fn outcomes(it: &Comparison) -> Table {
    let kinds = FAULTS.map(|(kind, _)| kind);
    let mut table = Table::new(["store"].into_iter().chain(kinds.map(ScenarioKind::title)));
    for store in &it.stores {
        let cells = kinds.into_iter().map(|kind| {
            let mut scenarios = it.scenarios.iter();
            let played = scenarios.find(|it| it.store == store.key && it.kind == kind);
            played.map_or_else(|| "–".into(), outcome)
        });
        table.add_row([store.name.clone()].into_iter().chain(cells));
    }
    table
}

fn outcome(scenario: &Scenario) -> String {
    if let Some(why) = &scenario.failed {
        return format!("could not be played: {why}");
    }
    if let Some(how) = &scenario.broken {
        return format!("**BROKEN:** {how}");
    }
    let time = measured_time(scenario).map_or_else(|| "not again".into(), millis);
    if scenario.kind == ScenarioKind::HolderKilled {
        return time;
    }
    let lock = match scenario.holder_kept {
        Some(true) => ", lock kept",
        Some(false) => ", lock lost and told",
        None => "",
    };
    let next = scenario.next_holder_ms.map(millis);
    let next = next.map_or_else(String::new, |time| format!(", next holder after {time}"));
    format!("{time}{lock}{next}")
}

fn peer_title(it: &Comparison, run: &PeerRun) -> String {
    let name = it.store(&run.store).map_or(&run.store, |store| &store.name);
    let workload = run.workload.map_or("", Workload::as_str);
    escape(&format!("{name}: {workload}, callers: {}", run.callers))
}

/// The other ways in one store. The first way is the plain one.
fn peer_rows(run: &PeerRun) -> Table {
    let text = |spread: Option<Spread>, show: fn(f64) -> String| {
        spread.map_or_else(|| "–".into(), |it| spread_text(it, show, false))
    };
    let heading = [
        "way",
        "cycles a second",
        "half within",
        "99 % within",
        "over the first",
    ];
    let mut table = Table::new(heading);
    for figures in &run.figures {
        let ratio = run.ratios.iter().find(|ratio| ratio.arm == figures.arm);
        let ratio = ratio.and_then(|ratio| ratio.cycles_per_second);
        let arm = &figures.arm;
        table.add_row([
            describe_arm(arm).map_or_else(|| arm.clone(), |what| format!("{arm}: {what}")),
            text(figures.cycles_per_second, number),
            text(figures.p50_us, time),
            text(figures.p99_us, time),
            ratio.map_or_else(
                || "–".into(),
                |it| format!("× {}", spread_text(it, number, is_difference(it, number))),
            ),
        ]);
    }
    table
}

/// Describes an arm of `distlock-lab peers`; `None` for one that is named after its meaning.
fn describe_arm(arm: &str) -> Option<&'static str> {
    Some(match arm {
        "redis-raw" => "SET NX PX and DEL",
        "redis-scripts" => "bare scripts that compare the owner",
        "rslock" => "the library rslock",
        "sqlite-plain" | "mysql-plain" | "postgres-plain" => "one INSERT and one DELETE",
        "mysql-get-lock" => "GET_LOCK of the server",
        "postgres-advisory" => "advisory locks of the server",
        "mysql-update" | "postgres-update" => "one UPDATE of one row",
        "zookeeper-one-by-one" => "create, list and delete one node",
        "zookeeper-floor" => "create and delete one node: no lock",
        "zookeeper-client" => "the recipe of the library zookeeper-client",
        "memory-table" => "the bare lock table",
        "memory-locker" => "distlock",
        _ => return None,
    })
}

/// The server of a store with its durability, and the findings that are warnings.
fn conditions(store: &StoreFacts) -> String {
    let durability = durability(store).unwrap_or_else(|| "not recorded".into());
    let warnings = store.findings.iter();
    let warnings = warnings.filter(|it| !matches!(&*it.verdict, "pass" | "unknown"));
    let warnings = warnings.map(|it| format!("; {} ({}): {}", it.check, it.verdict, it.detail));
    let (server, setup) = (&store.server, &store.setup);
    let warnings: String = warnings.collect();
    cell(&format!(
        "{server}; {setup}; durability: {durability}{warnings}"
    ))
}
