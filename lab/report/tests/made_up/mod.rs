//! Comparisons for tests: made up, and the published one.
#![allow(dead_code, reason = "each test uses its own")]

use std::{collections::BTreeMap, fs, path::Path};

use distlock_report::{
    Workload,
    compare::{
        About, Comparison, Figure, Finding, Measure, PROPERTIES, PeerRun, Promises, PropertyResult,
        Scenario, ScenarioKind, StoreFacts,
    },
    render,
};

/// The files of the page of a comparison, by name.
pub(crate) fn pages(comparison: &Comparison) -> BTreeMap<String, String> {
    render::comparison(comparison).files().into_iter().collect()
}

/// A file in `docs/comparison`.
pub(crate) fn published_file(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/comparison");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// The comparison that is published in `docs/comparison`.
pub(crate) fn published() -> Comparison {
    serde_json::from_str(&published_file("report.json")).unwrap()
}

/// A store with the capabilities of a Redis server, with one finding of the doctor and with results
/// of the suite.
fn store(key: &str, name: &str, reach: &str) -> StoreFacts {
    let properties = PROPERTIES.iter().enumerate().map(|(at, property)| {
        let fails = at == 3 && key == "sqlite";
        let failed = fails.then(|| "waiting::try_acquire_never_waits: it waited".into());
        let other = (at == 6).then(|| "reentrancy::last_release_frees: this store cannot".into());
        PropertyResult {
            property: property.key.into(),
            passed: u32::from(at % 3 != 0),
            failed: failed.into_iter().collect(),
            not_applicable: other.into_iter().collect(),
        }
    });
    StoreFacts {
        key: key.into(),
        product: key.into(),
        name: name.into(),
        server: format!("{name} 1.2"),
        setup: "one server for a test".into(),
        promises: Some(Promises {
            fencing: "per_name".into(),
            fairness: "none".into(),
            wakeup: "push".into(),
            lease: "ttl".into(),
            min_ttl_ms: 100,
            max_lease_ms: None,
            survives_restart: true,
            expiry_clock: "server".into(),
            reach: reach.into(),
            tickets: true,
            hand_over: true,
        }),
        findings: vec![Finding {
            check: "clock <steps>".into(),
            verdict: "warn".into(),
            detail: "look & see".into(),
        }],
        properties: properties.collect(),
        ..StoreFacts::default()
    }
}

fn figure(store: &str, experiment: &str, measure: Measure, value: f64) -> Figure {
    Figure {
        store: store.into(),
        experiment: experiment.into(),
        measure,
        rounds: vec![value, value * 1.111_1, value * 0.888_8],
        missing: None,
    }
}

/// Three stores with a few figures; one store has died.
pub(crate) fn small() -> Comparison {
    let mut figures = Vec::new();
    for (store, factor) in [("sqlite", 1.0), ("redis", 3.0), ("postgres", 40.0)] {
        let mut add = |experiment, measure, value| {
            figures.push(figure(store, experiment, measure, value));
        };
        add("uncontended", Measure::P50, 100.0 * factor);
        add("uncontended", Measure::P99, 350.0 * factor);
        add("independent-1", Measure::Rate, 9000.0 / factor);
        add("independent-64", Measure::Rate, 40_000.0 / factor);
        // Slow stores have no figure here, so a table has an empty cell.
        if factor < 2.0 {
            add("messages", Measure::Rate, 500.0 / factor);
        }
        add("wakeup", Measure::P50, 500.0 * factor);
    }
    let mut stores = vec![
        store("sqlite", "SQLite", "host"),
        store("redis", "Redis", "network"),
        store("postgres", "Postgres", "network"),
    ];
    // This store died during the run, so its row has a word instead of a number.
    let died = Some("in round 2 of wakeup: connection refused".to_owned());
    figures.last_mut().unwrap().missing.clone_from(&died);
    stores[2].stopped = died;
    Comparison {
        about: About {
            version: "0.1.0".into(),
            command: "distlock-lab compare --quick --spawn sqlite,redis,postgres".into(),
            date: "2026-01-02T03:04:05Z".into(),
            quick: true,
            rounds: 3,
            machine: vec![("cores".into(), "2".into())],
            remarks: vec!["Made up for a test.".into()],
        },
        stores,
        figures,
        scenarios: vec![Scenario {
            store: "redis".into(),
            kind: ScenarioKind::HolderKilled,
            ttl_ms: 4000,
            next_holder_ms: Some(3800.0),
            usable_ms: None,
            holder_kept: None,
            fault: None,
            lanes: Vec::new(),
            broken: None,
            failed: None,
        }],
        peers: vec![PeerRun {
            store: "redis".into(),
            workload: Some(Workload::Uncontended),
            callers: 1,
            figures: Vec::new(),
            ratios: Vec::new(),
            missing: None,
        }],
        loads: Vec::new(),
    }
}

/// Twelve stores with the longest names, with a figure in every column.
pub(crate) fn large() -> Comparison {
    let mut all = small();
    let names = (1..=12).map(|at| (format!("redis-{at}"), format!("Redis with Sentinel {at}")));
    all.stores = names
        .map(|(key, name)| store(&key, &name, "network"))
        .collect();
    all.figures.clear();
    let experiments = "uncontended independent-1 independent-16 independent-64 independent-256 \
                       contended-16 processes-4 handoff-2 wakeup idle-10 idle-1000 idle-100000 \
                       kickout takeover-local takeover-local-gone takeover-cross \
                       takeover-cross-gone takeovers \
                       messages counters-lock counters-optimistic counters-watch \
                       counters-script counters-transaction cache-guarded cache-naive traffic \
                       waiting-64 process-64 sessions";
    for experiment in experiments.split_whitespace() {
        for (measure, value) in [
            (Measure::Rate, 133_333.0),
            (Measure::P50, 133_333.0),
            (Measure::P99, 199_999.0),
            (Measure::Statements, 123.456),
            (Measure::Operations, 123.456),
            (Measure::WaitingStatements, 12_345.6),
            (Measure::WaitingBytes, 123_456.0),
            (Measure::Bytes, 123_456.0),
            (Measure::Unfairness, 123.456),
            (Measure::Cpu, 123.456),
            (Measure::Memory, 123_456.0),
            (Measure::Retries, 123.456),
            (Measure::Loads, 123.456),
            (Measure::LeastShare, 12.345),
            (Measure::MostShare, 45.678),
            (Measure::LongestWait, 123_456.0),
        ] {
            let figures = all
                .stores
                .iter()
                .map(|it| figure(&it.key, experiment, measure, value));
            all.figures.extend(figures);
        }
    }
    all
}
