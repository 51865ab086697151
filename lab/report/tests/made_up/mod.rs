//! Comparisons that are made up for tests.
#![allow(dead_code, reason = "each test uses its own")]

use distlock_report::{
    Workload,
    compare::{
        About, Comparison, Figure, Finding, Interval, Lane, Measure, PROPERTIES, PeerRun, Promises,
        PropertyResult, Scenario, ScenarioKind, StoreFacts,
    },
};

/// A store with the capabilities of a Redis server, with one finding of the doctor and with results
/// of the suite.
pub(crate) fn store(key: &str, name: &str, reach: &str) -> StoreFacts {
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
        properties: PROPERTIES
            .iter()
            .enumerate()
            .map(|(at, property)| PropertyResult {
                property: property.key.into(),
                passed: u32::from(at % 3 != 0),
                failed: if at == 3 && key == "sqlite" {
                    vec!["waiting::try_acquire_never_waits: it waited".into()]
                } else {
                    Vec::new()
                },
                not_applicable: if at == 6 {
                    vec!["reentrancy::last_release_frees: this store cannot".into()]
                } else {
                    Vec::new()
                },
            })
            .collect(),
        stopped: None,
        durability: None,
    }
}

/// Three stores with a few figures; one store has died.
pub(crate) fn small() -> Comparison {
    let mut all = Comparison {
        about: About {
            version: "0.1.0".into(),
            command: "distlock-lab compare --quick --spawn sqlite,redis,postgres".into(),
            date: "2026-01-02T03:04:05Z".into(),
            quick: true,
            rounds: 3,
            machine: vec![("cores".into(), "2".into())],
            remarks: vec!["Made up for a test.".into()],
        },
        stores: vec![
            store("sqlite", "SQLite", "host"),
            store("redis", "Redis", "network"),
            store("postgres", "Postgres", "network"),
        ],
        figures: Vec::new(),
        scenarios: vec![Scenario {
            store: "redis".into(),
            kind: ScenarioKind::HolderKilled,
            ttl_ms: 4000,
            next_holder_ms: Some(3800.0),
            usable_ms: None,
            holder_kept: None,
            fault: Some(Interval {
                from: 1500.0,
                until: 1500.0,
                label: "killed".into(),
            }),
            lanes: vec![
                Lane {
                    who: "holder".into(),
                    holds: vec![Interval {
                        from: 10.0,
                        until: 1500.0,
                        label: "token 7".into(),
                    }],
                },
                Lane {
                    who: "next".into(),
                    holds: vec![Interval {
                        from: 5300.0,
                        until: 6800.0,
                        label: "token 8".into(),
                    }],
                },
            ],
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
    };
    for (store, factor) in [("sqlite", 1.0), ("redis", 3.0), ("postgres", 40.0)] {
        let mut add = |experiment: &str, measure, value: f64| {
            all.figures.push(Figure {
                store: store.into(),
                experiment: experiment.into(),
                measure,
                rounds: vec![value, value * 1.1, value * 0.9],
                missing: None,
            });
        };
        add("uncontended", Measure::P50, 100.0 * factor);
        add("uncontended", Measure::P99, 350.0 * factor);
        add("independent-1", Measure::Rate, 9000.0 / factor);
        add("independent-64", Measure::Rate, 40_000.0 / factor);
        add("takeover-local", Measure::P50, 900.0 * factor);
        add("takeover-local", Measure::P99, 2900.0 * factor);
        add("takeover-cross", Measure::P50, 1400.0 * factor);
        add("takeovers", Measure::Rate, 4000.0 / factor);
        add("takeovers", Measure::Operations, 8.2);
        // Slow stores have no figure here, so a table has an empty cell.
        if factor < 2.0 {
            add("messages", Measure::Rate, 500.0 / factor);
        }
        add("wakeup", Measure::P50, 500.0 * factor);
    }
    // This store died during the run, so its row has a word instead of a number.
    all.stores[2].stopped = Some("in round 2 of wakeup: connection refused".into());
    if let Some(figure) = all.figures.last_mut() {
        figure.missing = all.stores[2].stopped.clone();
    }
    all
}

/// Twelve stores with the longest names, with a figure in every column.
pub(crate) fn large() -> Comparison {
    let mut all = small();
    all.stores = (1..=12)
        .map(|at| {
            store(
                &format!("redis-{at}"),
                &format!("Redis with Sentinel {at}"),
                "network",
            )
        })
        .collect();
    all.figures.clear();
    let keys: Vec<String> = all.stores.iter().map(|it| it.key.clone()).collect();
    let mut add = |experiment: &str, measure: Measure, value: f64| {
        for key in &keys {
            all.figures.push(Figure {
                store: key.clone(),
                experiment: experiment.into(),
                measure,
                rounds: vec![value, value * 1.111_1, value * 0.888_8],
                missing: None,
            });
        }
    };
    for experiment in [
        "uncontended",
        "independent-1",
        "independent-16",
        "independent-64",
        "independent-256",
        "contended-16",
        "processes-4",
        "handoff-2",
        "wakeup",
        "idle-10",
        "idle-1000",
        "idle-100000",
        "kickout",
        "takeover-local",
        "takeover-local-gone",
        "takeover-cross",
        "takeover-cross-gone",
        "takeovers",
        "messages",
        "counters-lock",
        "counters-optimistic",
        "counters-watch",
        "counters-script",
        "counters-transaction",
        "cache-guarded",
        "cache-naive",
        "traffic",
        "waiting-64",
        "process-64",
        "sessions",
    ] {
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
            add(experiment, measure, value);
        }
    }
    all.scenarios.clear();
    all
}
