//! Tests of the pages: the exact text for a small comparison, and the published pages, which must
//! equal the pages that their data give.

use std::{fs, path::Path};

use distlock_report::{
    Comparison, Spread,
    compare::{About, Figure, Measure, PeerRun, RoundLoad},
    render,
};

mod made_up;

use made_up::small;

#[test]
fn the_page_equals_the_recorded_one() {
    insta::assert_snapshot!("report.html", render::html(&small()));
}

#[test]
fn the_markdown_equals_the_recorded_one() {
    insta::assert_snapshot!("report.md", render::markdown(&small()));
}

#[test]
fn a_standalone_chart_equals_the_recorded_one() {
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
fn the_page_fetches_nothing_and_escapes_texts() {
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
    assert!(page.contains("clock &#60;steps&#62;") && page.contains("look &#38; see"));
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
    let advice = "You already run Postgres: **No advice from this run**. Postgres stopped";
    assert!(text.contains(advice), "{text}");
}

#[test]
fn an_empty_comparison_gives_a_valid_page() {
    let empty = Comparison {
        about: About::default(),
        stores: Vec::new(),
        figures: Vec::new(),
        scenarios: Vec::new(),
        peers: Vec::new(),
        loads: Vec::new(),
    };
    assert!(render::html(&empty).contains("</html>"));
    assert!(!render::markdown(&empty).is_empty());
    assert_eq!(Spread::from_values([]), None);
}

#[test]
fn the_report_says_when_not_to_use_a_lock() {
    let published = published();
    for (form, text) in [
        ("page", render::html(&published)),
        ("markdown", render::markdown(&published)),
    ] {
        let (_, told) = text
            .split_once("When not to use a lock")
            .unwrap_or_else(|| panic!("the {form} has no box"));
        let told = told
            .split("<h2")
            .next()
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        for word in [
            "unique index",
            "compare-and-swap",
            "row locks",
            "one consumer",
            "idempotent",
            "mutex",
            "fencing token",
        ] {
            assert!(told.contains(word), "{form}: {word}");
        }
    }
}

#[test]
fn a_busy_machine_is_reported_before_the_guide() {
    let mut all = small();
    assert!(!render::html(&all).contains("of CPU went to others"));
    for (round, share) in [(0, 1.0), (1, 35.0), (2, 45.0)] {
        all.loads.push(RoundLoad {
            experiment: "uncontended".into(),
            round,
            others_percent: share,
        });
    }
    for text in [render::html(&all), render::markdown(&all)] {
        let named = text
            .find("40 % of CPU went to others in 2 of 3 rounds")
            .unwrap();
        assert!(
            named
                < text
                    .find("Which one?</h2>")
                    .or(text.find("## Which one?"))
                    .unwrap()
        );
    }
    // The page of a run that did not record the load says so.
    let mut unrecorded = published();
    unrecorded.loads.clear();
    assert!(render::markdown(&unrecorded).contains("during the rounds: not measured"));
}

#[test]
fn fairness_between_processes_has_a_table_of_its_own() {
    let mut all = small();
    for (measure, value) in [
        (Measure::Unfairness, 1.9),
        (Measure::LeastShare, 17.0),
        (Measure::MostShare, 32.0),
        (Measure::LongestWait, 87_000.0),
    ] {
        for (store, factor) in [("sqlite", 1.0), ("redis", 1.1)] {
            all.figures.push(Figure {
                store: store.into(),
                experiment: "processes-4".into(),
                measure,
                rounds: vec![value * factor],
                missing: None,
            });
        }
    }
    let text = render::markdown(&all);
    let (_, table) = text.split_once("### Fairness between processes").unwrap();
    let rows: Vec<&str> = table
        .lines()
        .filter(|it| it.starts_with('|'))
        .take(3)
        .collect();
    assert_eq!(
        rows[0],
        "| store | busiest over idlest | least share | largest share | longest wait |"
    );
    assert_eq!(
        rows[2],
        "| SQLite | **1.9** | 17 % | **32 %** | **87.0 ms** |"
    );
    assert!(render::html(&all).contains("Fairness between processes"));
    // The table has no column for a figure that its run did not measure.
    let mut older = published();
    let measured = |figure: &Figure| figure.measure != Measure::LongestWait;
    older.figures.retain(measured);
    let published = render::markdown(&older);
    let (_, table) = published
        .split_once("### Fairness between processes")
        .unwrap();
    assert!(table.contains("busiest over idlest"));
    assert!(!table.contains("longest wait"));
}

#[test]
fn other_ways_are_described_or_reported_as_missing() {
    let mut without_peers = published();
    without_peers.peers.clear();
    for text in [
        render::html(&without_peers),
        render::markdown(&without_peers),
    ] {
        assert!(text.contains("Not measured in this run: raw commands"));
        assert!(text.contains("--peers"));
    }
    let mut all = small();
    let figures = |arm: &str, rate: f64| {
        let spread = serde_json::json!({"median": rate, "low": rate, "high": rate});
        serde_json::from_value(serde_json::json!({
            "arm": arm, "cycles_per_second": spread, "p50_us": null, "p90_us": null, "p99_us": null,
            "max_us": null, "operations_per_cycle": null, "statements_per_cycle": null,
            "cycles_per_task": [1, 1], "unfairness": null, "cycles": 1, "errors": 0,
            "first_error": null,
        }))
        .unwrap()
    };
    all.peers[0].figures = vec![
        figures("rslock", 4_321.0),
        figures("distlock-redis", 5_678.0),
    ];
    all.peers.push(PeerRun {
        missing: Some("distlock-lab peers ended with 1".into()),
        ..all.peers[0].clone()
    });
    for text in [render::html(&all), render::markdown(&all)] {
        assert!(!text.contains("Not measured in this run: raw commands"));
        for part in [
            "the library rslock",
            "4,321",
            "5,678",
            "distlock-lab peers ended with 1",
            "Not measured on SQLite, Postgres:",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }
}

/// The comparison that is published in `docs/comparison`.
fn published() -> Comparison {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/comparison/report.json");
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// The files in `docs/comparison` equal the pages that their own data give.
#[test]
fn the_published_report_is_made_from_its_data() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/comparison");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let published: Comparison = serde_json::from_str(&read("report.json")).unwrap();
    let again = "docs/comparison was not made from its report.json: run distlock-lab compare again";
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
