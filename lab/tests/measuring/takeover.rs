//! `bench --workload takeover`: short runs of all its measurements.

use crate::home::{Finished, Home};

/// Runs the workload on the store of this home, or on `memory:`.
fn takeover(home: &Home, memory: bool, args: &[&str]) -> Finished {
    let backend: &[&str] = if memory {
        &["--backend", "memory:"]
    } else {
        &[]
    };
    let words = ["bench", "--workload", "takeover", "--json"];
    home.run([&words, backend, args].concat())
}

#[test]
fn takeovers_are_measured_in_one_process_and_in_several() {
    let home = Home::new();
    let short = ["--concurrency", "4", "--seconds", "2", "--rounds", "1"];
    for (memory, more) in [
        (true, ["--rate", "20"].as_slice()),
        (false, ["--processes"].as_slice()),
    ] {
        let done = takeover(&home, memory, &[&short, more].concat());
        assert_eq!(done.code, 0, "{done:?}");
        let report = done.json();
        assert_eq!(report["workload"], "takeover");
        assert_eq!(report["callers"], 4);
        let processes = done.stderr.contains("nodes in processes of their own");
        assert_eq!(processes, !memory, "{done:?}");
        let figures = |arm: &str| {
            let mut all = report["figures"].as_array().unwrap().iter();
            all.find(|it| it["arm"] == arm).cloned().unwrap_or_default()
        };
        let logins = figures("confirmed");
        assert!(logins["cycles"].as_u64().unwrap() > 0, "{report}");
        assert!(logins["cycles_per_second"]["median"].as_f64().unwrap() > 0.0);
        assert_eq!(logins["operations_per_cycle"].is_number(), memory);
        assert!(figures("message")["p99_us"]["median"].as_f64().unwrap() > 0.0);
        let told = ["local-told", "cross-told"].map(|arm| figures(arm)["cycles"].as_u64());
        assert!(told.iter().flatten().sum::<u64>() > 0, "{report}");
    }
    assert_eq!(count_records_left(&home), 0);
}

/// Counts the records that the accounts of the runs left in the store.
fn count_records_left(home: &Home) -> u64 {
    home.sql(
        "update distributed_record set deleted = 0 where deleted = 0 and record_key like \
    '%/bench%'",
    )
}

#[test]
fn contended_logins_are_checked_for_duplicates_and_missing_winners() {
    let home = Home::new();
    let done = takeover(&home, false, &["--logins", "60", "--concurrency", "16"]);
    assert_eq!(done.code, 0, "{done:?}");
    let report = done.json();
    assert_eq!(report["logins"], 60);
    assert_eq!(report["duplicates"], 0);
    assert_eq!(report["zero_winners"], 0);
    assert_eq!(report["violations"], serde_json::json!([]));
    assert!(report["admitted"].as_u64().unwrap() > 0, "{report}");
    assert!(done.stderr.contains("of 60 contended logins"), "{done:?}");
}

#[test]
fn the_memory_of_idle_sessions_is_measured() {
    let home = Home::new();
    let done = takeover(&home, true, &["--idle", "40"]);
    assert_eq!(done.code, 0, "{done:?}");
    let report = done.json();
    assert_eq!(report["idle_sessions"], 40);
    let before = report["resident_kib_before"].as_u64().unwrap();
    assert!(before > 0 && report["resident_kib"].as_u64().unwrap() >= before);
}

#[test]
fn strangers_cause_no_call_to_the_store() {
    let home = Home::new();
    let short = ["--flood", "60", "--seconds", "0.4", "--concurrency", "4"];
    let done = takeover(&home, true, &short);
    assert_eq!(done.code, 0, "{done:?}");
    let report = done.json();
    assert_eq!(report["store_calls"], 0);
    for logins in ["with", "without"] {
        assert!(report[logins]["count"].as_u64().unwrap() > 0, "{report}");
    }
}

#[test]
fn flags_that_do_not_fit_are_refused() {
    let home = Home::new();
    let refused = |args: &[&str], says: &str| {
        home.run([&["bench", "--backend", "memory:"], args].concat())
            .assert_failed(64, says);
    };
    refused(&["--rate", "5"], "--rate is for --workload takeover");
    refused(&["--idle", "5"], "--idle is for --workload takeover");
    let takeover = ["--workload", "takeover"];
    refused(
        &[&takeover[..], &["--processes"]].concat(),
        "cannot share memory",
    );
    refused(&[&takeover[..], &["--rate", "0"]].concat(), "0.01");
    refused(
        &[&takeover[..], &["--concurrency", "0"]].concat(),
        "outside 1 to",
    );
    refused(&[&takeover[..], &["--rounds", "0"]].concat(), "20 ms");
    refused(
        &[&takeover[..], &["--idle", "5", "--logins", "5"]].concat(),
        "cannot be used with",
    );
}
