//! The pages: word for word for a small comparison, and the published one made again from its data.

use std::{fs, path::Path};

use distlock_report::{
    Comparison, Spread, Workload,
    compare::{
        About, Figure, Finding, Interval, Lane, Measure, PROPERTIES, PeerRun, Promises,
        PropertyResult, Scenario, ScenarioKind, StoreFacts,
    },
    render,
};

fn store(key: &str, name: &str, reach: &str) -> StoreFacts {
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
                failed: if at == 3 {
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
    }
}

fn small() -> Comparison {
    let mut all = Comparison {
        about: About {
            version: "0.1.0".into(),
            command: "distlock compare --quick --spawn sqlite,redis,postgres".into(),
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
        }],
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
        add("takeover-fenced", Measure::Rate, 4000.0 / factor);
        add("takeover-locked", Measure::Rate, 3000.0 / factor);
        add("takeover-fenced", Measure::Operations, 8.2);
        // Not every store has a figure of everything.
        if factor < 2.0 {
            add("route-locked", Measure::Rate, 500.0 / factor);
        }
        add("wakeup", Measure::P50, 500.0 * factor);
    }
    // One that died: its row stays, its number goes.
    all.stores[2].stopped = Some("in round 2 of wakeup: connection refused".into());
    if let Some(figure) = all.figures.last_mut() {
        figure.missing = all.stores[2].stopped.clone();
    }
    all
}

#[test]
fn the_page_word_for_word() {
    insta::assert_snapshot!("report.html", render::html(&small()));
}

#[test]
fn markdown_word_for_word() {
    insta::assert_snapshot!("report.md", render::markdown(&small()));
}

#[test]
fn a_figure_stands_alone() {
    insta::assert_snapshot!("throughput.svg", render::throughput_svg(&small()));
}

#[test]
fn the_same_data_gives_the_same_bytes() {
    let all = small();
    let json = serde_json::to_string(&all).unwrap();
    let again: Comparison = serde_json::from_str(&json).unwrap();
    assert_eq!(render::html(&again), render::html(&all));
    assert_eq!(render::markdown(&again), render::markdown(&all));
}

#[test]
fn the_page_needs_nothing_else() {
    let page = render::html(&small());
    for outside in [
        "<script",
        "http://",
        "https://",
        "src=",
        "@import",
        "<link rel=\"style",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("clock &lt;steps&gt;") && page.contains("look &amp; see"));
    assert!(page.contains("prefers-color-scheme:dark"));
    assert!(page.contains("Postgres died half-way"));
}

#[test]
fn a_dead_store_has_no_number_and_is_not_advised() {
    let text = render::markdown(&small());
    let row = text
        .lines()
        .find(|line| line.starts_with("| Postgres | died"))
        .or_else(|| text.lines().find(|line| line.contains("| died |")));
    assert!(row.is_some(), "{text}");
    assert!(text.contains("No advice from this run"));
}

#[test]
fn an_empty_comparison_is_a_page_too() {
    let empty = Comparison {
        about: About::default(),
        stores: Vec::new(),
        figures: Vec::new(),
        scenarios: Vec::new(),
        peers: Vec::new(),
    };
    assert!(render::html(&empty).contains("</html>"));
    assert!(!render::markdown(&empty).is_empty());
    assert_eq!(Spread::of([]), None);
}

/// `docs/comparison` says what its own data say.
#[test]
fn the_published_report_is_made_from_its_data() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/comparison");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let published: Comparison = serde_json::from_str(&read("report.json")).unwrap();
    let again = "docs/comparison was not made from its report.json: run distlock compare again";
    assert!(render::html(&published) == read("report.html"), "{again}");
    assert!(render::markdown(&published) == read("report.md"), "{again}");
    assert!(
        render::throughput_svg(&published) == read("throughput.svg"),
        "{again}"
    );
    assert!(published.stores.len() >= 6, "too few stores to be of use");
    for store in &published.stores {
        assert_eq!(store.stopped, None, "{}", store.name);
    }
    for scenario in &published.scenarios {
        assert_eq!(scenario.broken, None, "{}", scenario.store);
    }
}
