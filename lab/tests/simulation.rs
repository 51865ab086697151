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
        "500",
        "--seed",
        FIXED,
    ]));
}

#[test]
fn every_promise_of_a_quorum_is_kept_on_fixed_seeds() {
    assert_good(&simulate(&[
        "--parts", "quorum", "--seeds", "150", "--seed", FIXED,
    ]));
}

#[test]
fn every_promise_is_kept_on_fresh_seeds() {
    assert_good(&simulate(&["--seeds", "50"]));
}

#[test]
fn planted_bugs_are_caught() {
    let said = assert_good(&simulate(&["--planted", "--seed", FIXED]));
    let caught = said.lines().filter(|it| it.starts_with("caught")).count();
    assert!(caught >= 25, "{said}");
}

/// Another process has other hash keys for its tables, and must still make the same history.
#[test]
fn another_process_makes_the_same_history() {
    let history = || {
        let said = assert_good(&simulate(&["--seeds", "20", "--seed", FIXED]));
        let line = said.lines().find(|it| it.starts_with("trace "));
        line.unwrap().to_owned()
    };
    assert_eq!(history(), history());
}
