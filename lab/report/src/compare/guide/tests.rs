use super::{Advice, advice, criteria};
use crate::compare::{
    Comparison, Figure, Finding, Measure, Promises, PropertyResult, Scenario, ScenarioKind,
    StoreFacts, durability, fixtures::small,
};

fn reached_over_network(mut comparison: Comparison) -> Comparison {
    for store in &mut comparison.stores {
        store.promises = Some(Promises {
            fencing: "per_name".into(),
            fairness: "none".into(),
            wakeup: "push".into(),
            lease: "ttl".into(),
            min_ttl_ms: 100,
            max_lease_ms: None,
            survives_restart: true,
            expiry_clock: "server".into(),
            reach: "network".into(),
            tickets: true,
            hand_over: true,
        });
    }
    comparison
}

/// A comparison of Redis with Postgres. Postgres is `times` slower in each figure.
fn redis_and_slower_postgres(times: f64) -> Comparison {
    let mut all = reached_over_network(small());
    all.stores[1].key = "postgres".into();
    all.stores[1].name = "Postgres".into();
    all.stores[1].findings = vec![new_finding("synchronous_commit", "pass", "on")];
    all.stores[0].findings = vec![new_finding(
        "persistence",
        "pass",
        "append-only file, appendfsync everysec: a",
    )];
    let figure = |store: &str, experiment: &str, measure, value: f64| Figure {
        store: store.into(),
        experiment: experiment.into(),
        measure,
        rounds: vec![value * 0.99, value, value * 1.01],
        missing: None,
    };
    all.figures = vec![
        figure("redis", "uncontended", Measure::P50, 200.0),
        figure("postgres", "uncontended", Measure::P50, 200.0 * times),
        figure("redis", "independent-64", Measure::Rate, 90_000.0),
        figure(
            "postgres",
            "independent-64",
            Measure::Rate,
            90_000.0 / times,
        ),
        figure("redis", "wakeup", Measure::P50, 700.0),
        figure("postgres", "wakeup", Measure::P50, 700.0 * times),
    ];
    all
}

fn new_finding(check: &str, verdict: &str, detail: &str) -> Finding {
    Finding {
        check: check.into(),
        verdict: verdict.into(),
        detail: detail.into(),
    }
}

fn new_scenario(store: &str, kind: ScenarioKind, kept: bool) -> Scenario {
    Scenario {
        store: store.into(),
        kind,
        ttl_ms: 4_000,
        next_holder_ms: Some(3_800.0),
        usable_ms: Some(1_400.0),
        holder_kept: Some(kept),
        fault: None,
        lanes: Vec::new(),
        broken: None,
        failed: None,
    }
}

/// The comparison that is published in `docs/comparison`.
fn published() -> Comparison {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/comparison/report.json"
    );
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The first advice whose need contains `need`.
fn find_advice(all: &[Advice], need: &str) -> Advice {
    let found = all.iter().find(|it| it.need.contains(need));
    found.unwrap_or_else(|| panic!("{need}: {all:?}")).clone()
}

#[test]
fn one_store_is_advised_only_when_ranges_do_not_meet() {
    let all = advice(&reached_over_network(small()));
    assert_eq!(find_advice(&all, "Most locks").pick, "Redis");
    assert_eq!(find_advice(&all, "lowest latency").pick, "SQLite or Redis");
    assert!(
        find_advice(&all, "lowest latency")
            .because
            .contains("not tell")
    );
}

#[test]
fn one_store_is_advised_only_when_printed_figures_differ() {
    let mut all = redis_and_slower_postgres(2.0);
    // Both 10,000.2 and 10,000.4 cycles a second are printed as 10,000.
    all.figures[2].rounds = vec![10_000.4];
    all.figures[3].rounds = vec![10_000.2];
    assert_eq!(
        find_advice(&advice(&all), "Most locks").pick,
        "Redis or Postgres"
    );
    all.figures[3].rounds = vec![9_999.0];
    assert_eq!(find_advice(&advice(&all), "Most locks").pick, "Redis");
}

#[test]
fn a_store_that_died_is_not_advised() {
    let mut all = reached_over_network(small());
    all.stores[0].stopped = Some("connection refused".into());
    let said = advice(&all);
    assert!(
        find_advice(&said, "run Redis")
            .because
            .contains("connection refused")
    );
    assert!(said.iter().all(|it| it.pick != "Redis"));
}

/// Each part of the criterion has a case that meets it and a case that does not.
#[test]
fn stay_with_is_said_only_where_the_report_supports_it() {
    type Change = fn(&mut Comparison);
    let cases: [(&str, f64, Change, &str); 15] = [
        ("near", 4.9, |_| {}, "Stay with Postgres"),
        ("far", 5.1, |_| {}, "Rather Redis for its figures"),
        (
            "far in one figure",
            2.0,
            |it| it.figures[1].rounds = vec![1_100.0],
            "Rather Redis for its figures",
        ),
        (
            "far, served in order",
            5.1,
            |it| set_serves_in_order(it, 1),
            "Stay with Postgres only for service in the order of arrival",
        ),
        (
            "far, served in order as the better one is",
            5.1,
            |it| {
                set_serves_in_order(it, 0);
                set_serves_in_order(it, 1);
            },
            "Rather Redis for its figures",
        ),
        (
            "far, promised but not seen",
            5.1,
            |it| {
                set_serves_in_order(it, 1);
                it.stores[1].properties.clear();
            },
            "Rather Redis for its figures",
        ),
        (
            "far, goes on without its leader",
            5.1,
            |it| {
                it.scenarios
                    .push(new_scenario("postgres", ScenarioKind::LeaderLost, true));
            },
            "Stay with Postgres only for locks that go on without loss when a server dies",
        ),
        (
            "far, goes on but loses",
            5.1,
            |it| {
                it.scenarios
                    .push(new_scenario("postgres", ScenarioKind::LeaderLost, false));
            },
            "Stay with Postgres only for locks that go on when a server dies",
        ),
        (
            "far, goes on as the better one does",
            5.1,
            |it| {
                it.scenarios
                    .push(new_scenario("redis", ScenarioKind::LeaderLost, true));
                it.scenarios
                    .push(new_scenario("postgres", ScenarioKind::LeaderLost, true));
            },
            "Rather Redis for its figures",
        ),
        (
            "a crash takes back locks",
            2.0,
            |it| it.stores[1].findings = vec![new_finding("fsync", "fail", "off: a power cut")],
            "Not with these settings",
        ),
        (
            "another warning",
            2.0,
            |it| {
                it.stores[1]
                    .findings
                    .push(new_finding("access list", "warn", "open"));
            },
            "Stay with Postgres",
        ),
        (
            "a broken promise",
            2.0,
            |it| {
                it.stores[1].properties = vec![PropertyResult {
                    property: "exclusion".into(),
                    failed: vec!["two at once".into()],
                    ..PropertyResult::default()
                }];
            },
            "Not before this is understood",
        ),
        (
            "two holders after a fault",
            2.0,
            |it| {
                let mut two = new_scenario("postgres", ScenarioKind::ServerKilled, true);
                two.broken = Some("two at once".into());
                it.scenarios.push(two);
            },
            "Not before this is understood",
        ),
        (
            "a figure is missing",
            2.0,
            |it| it.figures[1].missing = Some("it failed".into()),
            "No advice from this run",
        ),
        (
            "nothing beside it",
            2.0,
            |it| it.stores[0].stopped = Some("connection refused".into()),
            "No advice from this run",
        ),
    ];
    for (case, times, change, pick) in cases {
        let mut all = redis_and_slower_postgres(times);
        change(&mut all);
        assert_eq!(
            find_advice(&advice(&all), "run Postgres").pick,
            pick,
            "{case}"
        );
    }
    // The report prints the limit that the code uses.
    assert!(criteria().concat().contains("at most 5 times as long"));
}

/// Makes a store promise service in order, with a passed case of the suite.
fn set_serves_in_order(comparison: &mut Comparison, store: usize) {
    let store = &mut comparison.stores[store];
    store.promises.as_mut().unwrap().fairness = "fifo".into();
    store.properties.push(PropertyResult {
        property: "fairness".into(),
        passed: 1,
        ..PropertyResult::default()
    });
}

/// Comparisons that together give every kind of advice.
fn reports() -> Vec<(&'static str, Comparison)> {
    let mut far = redis_and_slower_postgres(11.0);
    set_serves_in_order(&mut far, 1);
    for kind in ScenarioKind::ALL {
        far.scenarios.push(new_scenario("redis", kind, false));
        far.scenarios.push(new_scenario("postgres", kind, true));
    }
    far.stores[0].product = "redis-sentinel".into();
    far.stores[0].name = "Redis with Sentinel".into();
    let mut host = redis_and_slower_postgres(3.0);
    host.stores[1].promises.as_mut().unwrap().reach = "host".into();
    let mut unfit = redis_and_slower_postgres(2.0);
    unfit.stores[1].findings = vec![new_finding(
        "fsync",
        "fail",
        "off: a power cut may take back locks",
    )];
    unfit.stores[0].properties = vec![PropertyResult {
        property: "exclusion".into(),
        failed: vec!["two at once".into()],
        ..PropertyResult::default()
    }];
    let mut dead = redis_and_slower_postgres(2.0);
    dead.stores[0].stopped = Some("connection refused".into());
    vec![
        ("published", published()),
        ("near", redis_and_slower_postgres(1.2)),
        ("level", redis_and_slower_postgres(1.0)),
        ("faster", redis_and_slower_postgres(0.1)),
        ("far", far),
        ("host", host),
        ("unfit", unfit),
        ("dead", dead),
    ]
}

/// The words that may follow a number.
const UNITS: [&str; 10] = [
    "ns", "µs", "ms", "s", "cycles", "callers", "times", "B", "KiB", "%",
];

#[test]
fn every_sentence_of_the_advice_names_its_store_and_every_number_has_its_unit() {
    let mut sentences = 0;
    for (report, comparison) in reports() {
        for it in advice(&comparison) {
            for sentence in it.because.split(". ") {
                sentences += 1;
                let named = |store: &StoreFacts| sentence.contains(&store.name);
                assert!(
                    comparison.stores.iter().any(named),
                    "{report}: no store: {sentence}"
                );
                let words: Vec<&str> = sentence.split_whitespace().collect();
                for (at, word) in words.iter().enumerate() {
                    if !word.starts_with(|c: char| c.is_ascii_digit()) {
                        continue;
                    }
                    let next = words.get(at + 1).copied().unwrap_or_default();
                    let next = next.trim_end_matches([',', ';', '.', ')']);
                    assert!(UNITS.contains(&next), "{report}: {word} {next}: {sentence}");
                }
            }
        }
    }
    assert!(sentences > 60, "{sentences}");
}

#[test]
fn advice_with_figures_says_under_which_durability_they_were_measured() {
    for (report, comparison) in reports() {
        for it in advice(&comparison) {
            let figures =
                it.because.contains("cycles a second") || it.because.contains("one cycle");
            if !figures {
                continue;
            }
            let (_, measured) = it
                .because
                .split_once("Measured under: ")
                .unwrap_or_else(|| panic!("{report}: {it:?}"));
            for store in comparison.stores.iter().filter(|store| {
                // "Redis" is part of "Redis with Sentinel", which does not name Redis itself.
                let longer = comparison
                    .stores
                    .iter()
                    .filter(|other| other.name != store.name && other.name.contains(&store.name));
                let pick = longer.fold(it.pick.clone(), |pick, it| pick.replace(&it.name, ""));
                pick.contains(&store.name)
            }) {
                let said = durability(store).unwrap_or_else(|| "durability not recorded".into());
                let expected = format!("{}, {said}", store.name);
                // "Rather Redis" names the other store: the figures are those of the store that the
                // reader runs.
                assert!(
                    measured.contains(&expected) || it.pick.starts_with("Rather"),
                    "{report}: {expected}: {it:?}"
                );
            }
        }
    }
    let near = advice(&redis_and_slower_postgres(2.0));
    let found = find_advice(&near, "lowest latency");
    assert!(
        found.because.ends_with(
            "Measured under: Redis, append-only file, appendfsync everysec; Postgres, \
             synchronous_commit=on."
        ),
        "{found:?}"
    );
}
