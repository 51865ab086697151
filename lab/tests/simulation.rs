//! The simulation: fixed seeds, fresh seeds, and the bugs that it must find. `scripts/soak
//! simulate` runs more seeds.

use std::process::{Command, Output};

/// The first of the fixed seeds.
const FIXED: &str = "20260101";

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_distlock-lab"))
        .arg("simulate")
        .args(arguments)
        .output()
        .unwrap()
}

/// Asserts that every promise was kept, and returns the output.
fn assert_good(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    said
}

#[test]
fn every_promise_is_kept_on_fixed_seeds() {
    assert_good(&simulate(&[
        "--parts",
        "engine,batcher",
        "--seeds",
        "200",
        "--seed",
        FIXED,
    ]));
}

#[test]
fn every_promise_of_a_quorum_is_kept_on_fixed_seeds() {
    assert_good(&simulate(&[
        "--parts", "quorum", "--seeds", "60", "--seed", FIXED,
    ]));
}

/// The output says how often the members have changed, so a run without changes is no success.
#[test]
fn every_promise_of_a_ring_is_kept_on_fixed_seeds() {
    let said = assert_good(&simulate(&[
        "--parts", "ring", "--seeds", "20", "--seed", FIXED,
    ]));
    let changes = said
        .lines()
        .find(|it| it.contains("changes of the members"));
    let number = changes.and_then(|it| it.split(' ').next()?.parse().ok());
    assert!(number > Some(100), "{said}");
}

#[test]
fn every_promise_is_kept_on_fresh_seeds() {
    let others = "engine,batcher,quorum";
    assert_good(&simulate(&["--parts", others, "--seeds", "20"]));
    assert_good(&simulate(&["--parts", "ring", "--seeds", "5"]));
}

#[test]
fn planted_bugs_are_caught() {
    let said = assert_good(&simulate(&["--planted", "--seed", FIXED]));
    let caught = said.lines().filter(|it| it.starts_with("caught")).count();
    assert!(caught >= 33, "{said}");
}

/// Another process has other hash keys for its tables, and must still make the same history.
#[test]
fn another_process_makes_the_same_history() {
    let history = |parts, seeds| {
        let said = assert_good(&simulate(&[
            "--parts", parts, "--seeds", seeds, "--seed", FIXED,
        ]));
        let line = said.lines().find(|it| it.starts_with("trace "));
        line.unwrap().to_owned()
    };
    for (parts, seeds) in [("engine,batcher,quorum", "10"), ("ring", "3")] {
        assert_eq!(history(parts, seeds), history(parts, seeds), "{parts}");
    }
}
