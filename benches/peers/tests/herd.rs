//! The cost of many waiting processes for a store, within the bounds that docs/backends.md names.
//!
//! The bounds are counts, not speeds, and hold for 24 processes. On a busy machine each hand-over
//! takes longer, and the queue entries that are renewed meanwhile count too. So a herd must show in
//! much more than that: if all waiters took themselves for the first, each grant would cost 60 to
//! 100 requests.

use std::process::Command;

use serde_json::Value;

const PROCESSES: &str = "24";

/// Requests of all processes together for each grant. The documented number is 12 while each holder
/// keeps the lock for 50 ms.
const MOST_A_GRANT: f64 = 24.0;

/// Requests of each process a second on average, while nothing changes, as documented.
const MOST_A_SECOND: f64 = 2.0;

/// Runs the processes on a private server.
fn crowd(store: &[&str], more: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_distlock-peers"))
        .args(store)
        .args(["--processes", PROCESSES, "--json"])
        .args(more)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

fn wakes_few(store: &[&str]) {
    let busy = crowd(store, &["--hold", "0.05", "--seconds", "2"]);
    let grants = busy["grants"].as_array().unwrap();
    let grants: u64 = grants.iter().filter_map(Value::as_u64).sum();
    assert!(grants > 4, "the lock was passed on: {busy}");
    let cost = busy["requests_a_grant"].as_f64().unwrap();
    assert!(
        cost > 1.0 && cost <= MOST_A_GRANT,
        "{cost} for each grant: {busy}"
    );

    let idle = crowd(store, &["--idle", "--seconds", "4"]);
    let cost = idle["requests_a_second"].as_f64().unwrap();
    assert!(
        cost > 0.0 && cost <= MOST_A_SECOND,
        "{cost} a second of each: {idle}"
    );
}

#[test]
fn redis() {
    wakes_few(&["redis"]);
}

#[test]
fn postgres() {
    wakes_few(&["postgres"]);
}

#[test]
fn mariadb() {
    wakes_few(&["mysql"]);
}

#[test]
fn mysql() {
    wakes_few(&["mysql", "--mysql"]);
}

#[test]
fn sqlite() {
    wakes_few(&["sqlite"]);
}

#[test]
fn zookeeper() {
    wakes_few(&["zookeeper"]);
}
