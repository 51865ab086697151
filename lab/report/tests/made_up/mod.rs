//! Comparisons for tests: made up, and the published one.
#![allow(dead_code, reason = "each test uses its own")]

use std::{collections::BTreeMap, fs, path::Path};

use distlock_report::{
    Workload,
    compare::{
        About, Comparison, Figure, Finding, Measure, Missing, PROPERTIES, PeerRun, PropertyResult,
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
        promises: serde_json::from_value(serde_json::json!({
            "fencing": "per_name", "fairness": "none", "wakeup": "push", "lease": "ttl",
            "min_ttl_ms": 100, "max_lease_ms": null, "survives_restart": true,
            "expiry_clock": "server", "reach": reach, "tickets": true, "hand_over": true,
        }))
        .unwrap(),
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
    let died = "in round 2 of wakeup: connection refused";
    stores[2].stopped = Some(died.into());
    let missing = Missing {
        store: "postgres".into(),
        experiment: "wakeup".into(),
        why: died.into(),
    };
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
        missing: vec![missing],
        scenarios: vec![Scenario {
            store: "redis".into(),
            kind: ScenarioKind::HolderKilled,
            ttl_ms: 4000,
            next_holder_ms: Some(3800.0),
            usable_ms: None,
            holder_kept: None,
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

/// Twelve stores with the longest names and findings, and in each column the largest figure that is
/// published.
pub(crate) fn large() -> Comparison {
    let mut all = published();
    let mut stores = all.stores.iter();
    let longest = stores
        .find(|it| it.key == "redis-sentinel")
        .unwrap()
        .clone();
    let mut figures = std::mem::take(&mut all.figures);
    figures.retain(|it| !it.rounds.is_empty());
    figures.sort_by(|a, b| b.rounds[0].total_cmp(&a.rounds[0]));
    let mut columns: Vec<Figure> = Vec::new();
    for it in figures {
        let is_of =
            |other: &Figure| (&other.experiment, other.measure) == (&it.experiment, it.measure);
        if !columns.iter().any(is_of) {
            columns.push(it);
        }
    }
    all.stores.clear();
    all.missing.clear();
    for at in 1..=12 {
        let (key, name) = (format!("redis-{at}"), format!("Redis with Sentinel {at}"));
        all.figures.extend(columns.iter().map(|it| Figure {
            store: key.clone(),
            ..it.clone()
        }));
        all.stores.push(StoreFacts {
            key,
            name,
            ..longest.clone()
        });
    }
    all
}
