//! The page of a comparison: charts, one table, and everything else behind them.

use super::{
    charts::{Chart, Line, RangeRow, axis_number, axis_time},
    costs::{OVERVIEW, TABLES, spread_text},
    document::Document,
};
use crate::{
    Workload,
    compare::{
        BUSY_PERCENT, Comparison, Measure, PROPERTIES, PeerRun, Promises, Scenario, ScenarioKind,
        StoreFacts, durability, is_difference, shown_by_faults,
    },
    results::statistics::Spread,
    text::{millis, number, time, with_separators},
};

/// Makes the page of a comparison.
#[must_use]
pub fn comparison(comparison: &Comparison) -> Document {
    let about = &comparison.about;
    let mut page = Document::new("Distributed locks, side by side");
    page.text(&format!(
        "{}. distlock {}. Median of {} interleaved rounds, lowest to highest in brackets; bold: \
         better than all others in every round, the store of one process left aside. A cycle is an \
         acquire and a release.",
        about.date, about.version, about.rounds
    ));
    for remark in busy_warning(comparison).iter().chain(&about.remarks) {
        page.remark(remark);
    }
    for store in &comparison.stores {
        if let Some(why) = &store.stopped {
            page.remark(&format!(
                "**{} died half-way, so its later figures are missing:** {why}",
                store.name
            ));
        }
    }
    let latency = |experiment, title| latency_chart(comparison, experiment, title);
    let charts = [
        latency("uncontended", "One cycle, one caller"),
        throughput_chart(comparison),
        latency("wakeup", "Wake-up of a waiter in another client"),
        latency(
            "takeover-cross",
            "Takeover of a client of another gateway node",
        ),
    ];
    page.charts(charts.into_iter().flatten());
    if let Some((heading, rows)) = OVERVIEW.fill(comparison) {
        page.table(heading, rows);
    }
    add_promises(comparison, &mut page);
    add_costs(comparison, &mut page);
    add_faults(comparison, &mut page);
    add_peers(comparison, &mut page);
    add_conditions(comparison, &mut page);
    page
}

/// The rounds in which other processes used so much of the processors that the figures suffered.
fn busy_rounds(comparison: &Comparison) -> Vec<f64> {
    let shares = comparison.loads.iter().map(|it| it.others_percent);
    shares.filter(|share| *share >= BUSY_PERCENT).collect()
}

fn busy_warning(comparison: &Comparison) -> Option<String> {
    let busy = busy_rounds(comparison);
    let median = Spread::from_values(busy.iter().copied())?.median;
    Some(format!(
        "The machine was busy: {} % of CPU went to others in {} of {} rounds. The figures are \
         indicative only.",
        number(median),
        busy.len(),
        comparison.loads.len(),
    ))
}

/// Cycles a second, by the number of callers.
fn throughput_chart(comparison: &Comparison) -> Option<Chart> {
    let note = "each caller its own name, by the number of callers";
    let title = "Lock cycles a second";
    let step = |size: u32| size.to_string();
    let drawn = ("throughput", title, note, axis_number as fn(f64) -> String);
    size_chart(comparison, "independent", Measure::Rate, step, drawn)
}

/// A chart with a line for each store over the sizes of an experiment; `None` when there are fewer
/// than two sizes.
fn size_chart(
    comparison: &Comparison,
    family: &str,
    measure: Measure,
    step: impl Fn(u32) -> String,
    (name, title, note, unit): (&'static str, &str, &str, fn(f64) -> String),
) -> Option<Chart> {
    let sizes = comparison.sizes(family);
    let lines = comparison.stores.iter().map(|store| Line {
        store: store.product.clone(),
        label: store.name.clone(),
        values: sizes
            .iter()
            .map(|size| comparison.spread(&store.key, &format!("{family}-{size}"), measure))
            .map(|spread| spread.map(|it| it.median))
            .collect(),
    });
    let lines: Vec<Line> = lines
        .filter(|it| it.values.iter().any(Option::is_some))
        .collect();
    let steps: Vec<String> = sizes.into_iter().map(step).collect();
    (steps.len() > 1).then(|| Chart::lines(name, title, note, &steps, &lines, unit))
}

/// A latency of every store; `None` when no store has it.
fn latency_chart(comparison: &Comparison, experiment: &'static str, title: &str) -> Option<Chart> {
    let rows = comparison.stores.iter().filter_map(|store| {
        let middle = comparison
            .spread(&store.key, experiment, Measure::P50)?
            .median;
        let slow = comparison.spread(&store.key, experiment, Measure::P99);
        Some(range_row(
            store,
            middle,
            slow.map_or(middle, |slow| slow.median),
        ))
    });
    range_chart(
        experiment,
        title,
        "dot: half are faster; bar: to the slowest in a hundred",
        rows,
    )
}

fn range_row(store: &StoreFacts, middle: f64, high: f64) -> RangeRow {
    RangeRow {
        store: store.product.clone(),
        label: store.name.clone(),
        middle,
        high,
    }
}

fn range_chart(
    name: &'static str,
    title: &str,
    note: &str,
    rows: impl Iterator<Item = RangeRow>,
) -> Option<Chart> {
    let mut rows: Vec<RangeRow> = rows.collect();
    rows.sort_by(|a, b| a.middle.total_cmp(&b.middle));
    (!rows.is_empty()).then(|| Chart::ranges(name, title, note, &rows))
}

/// Adds the marks of the conformance suite and of the faults, and the capabilities.
fn add_promises(comparison: &Comparison, page: &mut Document) {
    page.chapter("Promises");
    page.fold("Cases of the conformance suite that passed on these servers, and capabilities");
    let heading = || {
        let names = comparison.stores.iter().map(|store| store.name.clone());
        [String::new()].into_iter().chain(names).collect::<Vec<_>>()
    };
    let was_tested = comparison
        .stores
        .iter()
        .any(|store| !store.properties.is_empty());
    let properties = PROPERTIES.iter().filter(|_| was_tested).map(|property| {
        let marks = comparison.stores.iter().map(|store| {
            let result = store
                .properties
                .iter()
                .find(|it| it.property == property.key);
            result.map_or_else(
                || "–".into(),
                |it| match it.passed as usize + it.failed.len() {
                    0 => it.mark().to_owned(),
                    cases => format!("{} {} of {cases}", it.mark(), it.passed),
                },
            )
        });
        row(property.title, marks)
    });
    let by_faults = shown_by_faults(comparison).into_iter();
    let by_faults =
        by_faults.map(|(title, marks)| row(title, marks.into_iter().map(str::to_owned)));
    let tested: Vec<_> = properties.chain(by_faults).collect();
    if !tested.is_empty() {
        page.table(heading(), tested);
    }
    for store in &comparison.stores {
        let failed = store.properties.iter().flat_map(|it| &it.failed);
        page.list(failed.map(|said| format!("**{}:** {said}", store.name)));
    }
    if comparison
        .stores
        .iter()
        .any(|store| store.promises.is_some())
    {
        let rows = CAPABILITIES.iter().map(|(label, describe)| {
            let values = comparison.stores.iter().map(|store| &store.promises);
            row(
                label,
                values.map(|it| it.as_ref().map_or_else(|| "–".into(), describe)),
            )
        });
        page.table(heading(), rows);
    }
}

fn row(label: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    [label.to_owned()].into_iter().chain(cells).collect()
}

/// Puts one capability of a store into words.
type Describe = fn(&Promises) -> String;

/// The capabilities that a store declares.
const CAPABILITIES: [(&str, Describe); 11] = [
    ("shared by", |it| it.reach.clone()),
    ("order of waiting processes", |it| it.fairness.clone()),
    ("wake-up", |it| it.wakeup.clone()),
    ("a lease hangs on", |it| it.lease.clone()),
    ("clock that ends it", |it| it.expiry_clock.clone()),
    ("tokens rise", |it| it.fencing.replace('_', " ")),
    ("shortest lease", |it| whole_millis(it.min_ttl_ms)),
    ("longest lease at a time", |it| {
        it.max_lease_ms
            .map_or_else(|| "as asked".into(), whole_millis)
    }),
    ("locks survive a restart", |it| {
        yes_or_no(it.survives_restart)
    }),
    ("hand-over in one step", |it| yes_or_no(it.hand_over)),
    ("tickets", |it| yes_or_no(it.tickets)),
];

fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn whole_millis(ms: u64) -> String {
    time(std::time::Duration::from_millis(ms).as_secs_f64() * 1e6)
}

/// Adds all tables of costs.
fn add_costs(comparison: &Comparison, page: &mut Document) {
    page.chapter("Cost");
    page.fold("Every figure, store by store");
    let idle = size_chart(
        comparison,
        "idle",
        Measure::P50,
        |size| with_separators(size.into()),
        (
            "idle",
            "One cycle while other locks are held",
            "one caller, by the number of held locks",
            axis_time,
        ),
    );
    let handoff = latency_chart(comparison, "handoff-2", "Hand-over inside a process");
    page.charts(idle.into_iter().chain(handoff));
    for table in &TABLES {
        if let Some((heading, rows)) = table.fill(comparison) {
            page.section(table.title);
            page.text(table.note);
            page.table(heading, rows);
        }
    }
    let failures = comparison.failures().into_iter();
    page.list(
        failures
            .map(|(store, experiment, why)| format!("**{store} failed in {experiment}:** {why}")),
    );
}

/// The kinds of faults: the name of the chart, and the measured time.
const FAULTS: [(ScenarioKind, &str, &str); 4] = [
    (
        ScenarioKind::HolderKilled,
        "holder-killed",
        "from SIGKILL to the grant of the next holder",
    ),
    (
        ScenarioKind::ServerKilled,
        "server-killed",
        "from SIGKILL until a lock can be taken, restart included",
    ),
    (
        ScenarioKind::ServerPaused,
        "server-paused",
        "from SIGSTOP until a lock can be taken again",
    ),
    (
        ScenarioKind::LeaderLost,
        "leader-lost",
        "from SIGKILL of the deciding server until a lock can be taken",
    ),
];

/// Adds charts of the times after faults, and a table of their outcomes.
fn add_faults(comparison: &Comparison, page: &mut Document) {
    if comparison.scenarios.is_empty() {
        return;
    }
    page.chapter("Behaviour under failure");
    let leases = comparison.scenarios.iter().map(|it| it.ttl_ms).max();
    page.text(&format!(
        "Leases last for {}. A killed server starts again after 1 s. A server that stands still \
         does so for 7 s, longer than the lease, and the times below contain these 7 s. A killed \
         leader or primary stays away.",
        whole_millis(leases.unwrap_or_default())
    ));
    page.charts(FAULTS.into_iter().filter_map(|(kind, name, note)| {
        let played = comparison.scenarios.iter().filter(|it| it.kind == kind);
        let rows = played.filter_map(|it| {
            let us = measured_time(it)? * 1e3;
            Some(range_row(comparison.store(&it.store)?, us, us))
        });
        range_chart(name, kind.title(), note, rows)
    }));
    page.fold("Outcomes: the time after the fault, and whether the holder kept its lock");
    let kinds = FAULTS.map(|(kind, ..)| kind);
    let rows = comparison.stores.iter().map(|store| {
        let outcome = |kind| {
            let mut scenarios = comparison.scenarios.iter();
            let played = scenarios.find(|it| it.store == store.key && it.kind == kind);
            played.map_or_else(|| "–".into(), outcome)
        };
        row(&store.name, kinds.into_iter().map(outcome))
    });
    page.table(
        ["store"].into_iter().chain(kinds.map(ScenarioKind::title)),
        rows,
    );
}

/// The time that a scenario measures, in milliseconds.
fn measured_time(scenario: &Scenario) -> Option<f64> {
    match scenario.kind {
        ScenarioKind::HolderKilled => scenario.next_holder_ms,
        _ => scenario.usable_ms,
    }
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

/// Adds the other ways of locking in the same stores. The first way of each table is the plain one.
fn add_peers(comparison: &Comparison, page: &mut Document) {
    page.chapter("Other ways in the same stores");
    if comparison.peers.is_empty() {
        page.text("Not measured in this run: `--peers` measures them on the same servers.");
        return;
    }
    page.fold("Raw commands, locks that databases bring, other libraries; on the same servers");
    page.text(
        "The first row of each table is the plain way: no renewal, no token, no notice of a loss. \
         A ratio is bold if no round contradicts it.",
    );
    for run in &comparison.peers {
        let store = comparison.store(&run.store);
        let name = store.map_or(run.store.as_str(), |store| store.name.as_str());
        let workload = run.workload.map_or("", Workload::as_str);
        page.section(&format!("{name}: {workload}, callers: {}", run.callers));
        match &run.missing {
            Some(why) => page.text(&format!("Not measured: {why}")),
            None => page.table(
                [
                    "way",
                    "cycles a second",
                    "half within",
                    "99 % within",
                    "over the first",
                ],
                peer_rows(run),
            ),
        }
    }
    let is_without = |key: &str| !comparison.peers.iter().any(|it| it.store == key);
    let without = comparison.stores.iter().filter(|it| is_without(&it.key));
    let without: Vec<_> = without.map(|it| it.name.as_str()).collect();
    if !without.is_empty() {
        page.text(&format!(
            "Not measured on {}: the other ways need one server, which the command itself started.",
            without.join(", ")
        ));
    }
}

fn peer_rows(run: &PeerRun) -> impl Iterator<Item = Vec<String>> {
    let text = |spread: Option<Spread>, show: fn(f64) -> String| {
        spread.map_or_else(|| "–".into(), |it| spread_text(it, show, false))
    };
    run.figures.iter().map(move |figures| {
        let ratio = run.ratios.iter().find(|ratio| ratio.arm == figures.arm);
        let ratio = ratio.and_then(|ratio| ratio.cycles_per_second);
        vec![
            match describe_arm(&figures.arm) {
                Some(what) => format!("{}: {what}", figures.arm),
                None => figures.arm.clone(),
            },
            text(figures.cycles_per_second, number),
            text(figures.p50_us, time),
            text(figures.p99_us, time),
            ratio.map_or_else(
                || "–".into(),
                |it| format!("× {}", spread_text(it, number, is_difference(it, number))),
            ),
        ]
    })
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

/// Adds the command, the machine, and each server with its durability.
fn add_conditions(comparison: &Comparison, page: &mut Document) {
    page.chapter("Conditions and command");
    page.command(&comparison.about.command);
    let rounds = comparison.loads.len();
    let limit = number(BUSY_PERCENT);
    page.text(&match busy_rounds(comparison).len() {
        _ if rounds == 0 => "CPU of others during the rounds: not measured.".to_owned(),
        busy => format!("CPU of others: {limit} % or more in {busy} of {rounds} rounds."),
    });
    let machine = comparison.about.machine.iter();
    let machine = machine.map(|(label, value)| [label.clone(), value.clone()]);
    let stores = comparison.stores.iter().map(|store| {
        let durability = durability(store).unwrap_or_else(|| "not recorded".into());
        let warnings = store
            .findings
            .iter()
            .filter(|it| !matches!(&*it.verdict, "pass" | "unknown"));
        let warnings = warnings.map(|it| format!("; {} ({}): {}", it.check, it.verdict, it.detail));
        let (server, setup) = (&store.server, &store.setup);
        let warnings: String = warnings.collect();
        [
            store.name.clone(),
            format!("{server}; {setup}; durability: {durability}{warnings}"),
        ]
    });
    page.table(["", ""], machine.chain(stores));
}
