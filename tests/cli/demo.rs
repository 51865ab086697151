//! `distlock demo`: every scene passes, and no process, file or record is left.

use std::{fs, path::Path, process::Command};

use distlock_harness::{Process, Signal, eventually};
use serde_json::Value;

use crate::support::{Home, SOON};

/// A call of the demo with a separate folder for temporary files, so that the test sees the files
/// that remain.
fn demo(home: &Home, args: &[&str]) -> Command {
    let mut command = home.bare([&["demo"], args].concat());
    fs::create_dir_all(home.path("tmp")).unwrap();
    command.env("TMPDIR", home.path("tmp"));
    command
}

fn lines(output: &str) -> Vec<Value> {
    output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect()
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// The processes of the demo: those with the path of the folder in their environment.
fn processes_of(folder: &Path) -> Vec<u32> {
    let needle = folder.to_str().unwrap().as_bytes();
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let id = entry.file_name().to_str()?.parse().ok()?;
            let environment = fs::read(entry.path().join("environ")).ok()?;
            environment
                .windows(needle.len())
                .any(|window| window == needle)
                .then_some(id)
        })
        .collect()
}

#[test]
fn all_scenes_pass() {
    let home = Home::new();
    let mut run = Process::spawn(&mut demo(&home, &["--json"])).unwrap();
    let status = run.wait(SOON * 6).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    let lines = lines(&output);
    let verdicts: Vec<_> = lines
        .iter()
        .filter(|line| line["event"] == "verdict")
        .collect();
    assert_eq!(verdicts.len(), 7, "{output}");
    assert!(
        verdicts.iter().all(|verdict| verdict["passed"] == true),
        "{output}"
    );
    let result = lines.last().unwrap();
    assert_eq!(
        (&result["event"], &result["passed"]),
        (&"result".into(), &7.into()),
        "{result}"
    );
    // Rising tokens show that the demo really used the lock of the account.
    let granted: Vec<_> = lines
        .iter()
        .filter(|line| {
            line["transition"]["event"] == "granted" && line["transition"]["uid"] == "alice"
        })
        .filter_map(|line| Some((line["gen"].as_u64()?, line["token"].as_u64()?)))
        .collect();
    assert!(granted.len() >= 4, "{output}");
    let mut by_generation = granted.clone();
    by_generation.sort_unstable();
    assert!(
        by_generation
            .windows(2)
            .all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1),
        "{granted:?}"
    );
    assert!(is_empty(&home.path("tmp")));
    assert_eq!(processes_of(&home.path("tmp")), [0; 0]);
}

#[test]
fn the_demo_runs_on_a_given_store_and_prints_a_timeline() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    let mut run = Process::spawn(&mut demo(&home, &["--backend", &url])).unwrap();
    let status = run.wait(SOON * 6).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 7 scenes passed"), "{output}");
    assert_eq!(output.matches("PASSED").count(), 7, "{output}");
    assert!(
        output.contains("phone: got the notice: offline, code 1, by pc"),
        "{output}"
    );
    assert_eq!(
        home.sql("delete from distributed_record where deleted = 0"),
        0,
        "the demo's records are gone"
    );
}

#[test]
fn a_configured_store_is_not_used_and_a_message_says_so() {
    let home = Home::new();
    let mut command = demo(&home, &[]);
    command.env("DISTLOCK_BACKEND", "sqlite:/nowhere/locks.db");
    let mut run = Process::spawn(&mut command).unwrap();
    run.wait_for_line(SOON, |line| line.contains("DISTLOCK_BACKEND is not used"))
        .unwrap();
    run.wait_for_line(SOON, |line| line.contains("scene 1"))
        .unwrap();
    run.signal(Signal::INT).unwrap();
    run.wait(SOON).unwrap();
}

#[test]
fn a_signal_leaves_no_process_and_no_file() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let home = Home::new();
        let mut run = Process::spawn(&mut demo(&home, &[])).unwrap();
        run.wait_for_line(SOON, |line| line.contains("scene 1"))
            .unwrap();
        assert_eq!(
            processes_of(&home.path("tmp")).len(),
            3,
            "the demo and two nodes"
        );
        run.signal(signal).unwrap();
        assert_eq!(
            run.wait(SOON).unwrap().code(),
            Some(code),
            "{}",
            run.output()
        );
        eventually("the nodes are gone", SOON, || {
            processes_of(&home.path("tmp")).is_empty()
        })
        .unwrap();
        assert!(is_empty(&home.path("tmp")));
    }
}

#[test]
fn nodes_do_not_outlive_a_killed_demo() {
    let home = Home::new();
    let mut run = Process::spawn(&mut demo(&home, &[])).unwrap();
    run.wait_for_line(SOON, |line| line.contains("scene 1"))
        .unwrap();
    run.signal(Signal::KILL).unwrap();
    run.wait(SOON).unwrap();
    eventually("the nodes are gone", SOON, || {
        processes_of(&home.path("tmp")).is_empty()
    })
    .unwrap();
}

#[test]
fn demo_recipes_passes_and_leaves_nothing() {
    let home = Home::new();
    let mut run = Process::spawn(&mut demo(&home, &["recipes"])).unwrap();
    let status = run.wait(SOON * 3).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("all 4 scenes passed"), "{output}");
    assert!(output.contains("with the guard #"), "{output}");
    eventually("the candidates to be gone", SOON, || {
        processes_of(&home.path("tmp")).is_empty()
    })
    .unwrap();
    assert!(is_empty(&home.path("tmp")));
    let mut refused = demo(&home, &["recipes", "--backend", "sqlite:x"]);
    let mut refused = Process::spawn(&mut refused).unwrap();
    assert_eq!(refused.wait(SOON).unwrap().code(), Some(64));
}
