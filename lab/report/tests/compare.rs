//! Tests of the page: the exact text for a small comparison, and the published files, which must
//! equal the files that their data give.

use distlock_report::{
    Comparison, Spread,
    compare::{Figure, Measure, PeerRun, RoundLoad},
};

mod made_up;

use made_up::{pages, published, published_file, small};

fn markdown(comparison: &Comparison) -> String {
    pages(comparison).remove("report.md").unwrap()
}

fn html(comparison: &Comparison) -> String {
    pages(comparison).remove("report.html").unwrap()
}

#[test]
fn the_markdown_equals_the_recorded_one() {
    insta::assert_snapshot!("report.md", markdown(&small()));
}

#[test]
fn the_same_data_gives_the_same_bytes() {
    let all = small();
    let json = serde_json::to_string(&all).unwrap();
    let again: Comparison = serde_json::from_str(&json).unwrap();
    assert_eq!(pages(&again), pages(&all));
}

#[test]
fn the_page_fetches_nothing_and_escapes_texts() {
    let page = html(&small()).replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
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
fn a_dead_store_has_no_number() {
    let text = markdown(&small());
    assert!(
        text.contains("| Postgres | 4.00 ms") && text.contains("| died |"),
        "{text}"
    );
}

#[test]
fn charts_stand_before_tables() {
    let text = markdown(&published());
    let chart = text.find("](throughput.svg)").unwrap();
    assert!(chart < text.find("\n| ").unwrap(), "{text}");
}

#[test]
fn an_empty_comparison_gives_a_valid_page() {
    assert!(html(&Comparison::default()).contains("</html>"));
    assert_eq!(Spread::from_values([]), None);
}

#[test]
fn a_busy_machine_is_reported_before_the_charts() {
    let mut all = small();
    assert!(!html(&all).contains("of CPU went to others"));
    let load = |round, others_percent| RoundLoad {
        experiment: "uncontended".into(),
        round,
        others_percent,
    };
    for (shares, named, method) in [
        (&[][..], None, "not measured"),
        (&[0.0, 9.9, 3.0], None, "10 % or more in 0 of 3 rounds"),
        (
            &[2.0, 40.0, 60.0],
            Some("The machine was busy: 50 % of CPU went to others in 2 of 3 rounds."),
            "10 % or more in 2 of 3 rounds",
        ),
        (
            &[10.0],
            Some("The machine was busy: 10 % of CPU went to others in 1 of 1 rounds."),
            "10 % or more in 1 of 1 rounds",
        ),
    ] {
        all.loads = (0..)
            .zip(shares)
            .map(|(round, share)| load(round, *share))
            .collect();
        let text = markdown(&all);
        assert!(text.contains(method), "{text}");
        let busy = text.find("The machine was busy");
        assert_eq!(busy.is_some(), named.is_some(), "{text}");
        if let (Some(busy), Some(named)) = (busy, named) {
            assert!(
                text[busy..].starts_with(named) && busy < text.find("![").unwrap(),
                "{text}"
            );
        }
    }
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
            });
        }
    }
    let text = markdown(&all);
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
    assert!(html(&all).contains("Fairness between processes"));
    // The table has no column for a figure that its run did not measure.
    let mut older = published();
    let measured = |figure: &Figure| figure.measure != Measure::LongestWait;
    older.figures.retain(measured);
    let published = markdown(&older);
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
    for text in [html(&without_peers), markdown(&without_peers)] {
        assert!(text.contains("Not measured in this run"));
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
    for text in [html(&all), markdown(&all)] {
        assert!(!text.contains("Not measured in this run"));
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

#[test]
fn the_lock_server_stands_beside_the_published_figures_of_another_one() {
    let mut all = small();
    let beside =
        "| dflockd 1.16.0 | Apple M1 (MacBook Air, 8 GB) | 1 | 13,440 | 62.0 µs | 178 µs |";
    assert!(markdown(&all).contains(beside) && !markdown(&all).contains("this one"));
    let redis = all.stores.iter_mut().find(|it| it.key == "redis");
    redis.unwrap().product = "lock-server".into();
    let text = markdown(&all);
    let (ours, theirs) = (text.find("| Redis | this one | 64 | "), text.find(beside));
    assert!(ours.is_some() && ours < theirs, "{text}");
}

/// The files in `docs/comparison` equal the files that their own data give.
#[test]
fn the_published_report_is_made_from_its_data() {
    let published = published();
    let again = "docs/comparison was not made from its report.json: run distlock-lab compare";
    for (name, content) in pages(&published) {
        assert!(published_file(&name) == content, "{name}: {again} --render");
    }
    assert!(published.stores.len() >= 6, "too few stores to be of use");
    for store in &published.stores {
        assert_eq!(store.stopped, None, "{}", store.name);
    }
    for scenario in &published.scenarios {
        assert_eq!(scenario.broken, None, "{}", scenario.store);
    }
}
