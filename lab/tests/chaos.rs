//! Short runs of the chaos lab, on embedded stores. Servers, all planted bugs and long runs:
//! `scripts/soak chaos`.

use std::process::{Command, Output};

/// A run that is the same every time, as far as processes can be.
const FIXED: &str = "20260101";

fn chaos(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_distlock-lab"))
        .arg("chaos")
        .args(arguments)
        .output()
        .unwrap()
}

/// Asserts the exit code, and shows what was said.
fn ends(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}{errors}");
    said
}

fn keeps_its_promises(store: &str, seed: &str) {
    ends(
        &chaos(&["--spawn", store, "--seconds", "6", "--seed", seed]),
        0,
    );
}

macro_rules! stores {
    ($($store:ident)+) => {$(
        mod $store {
            #[test]
            fn keeps_its_promises_on_a_fixed_seed() {
                super::keeps_its_promises(stringify!($store), super::FIXED);
            }
        }
    )+};
}

stores! { memory sqlite }

#[test]
fn embedded_stores_keep_their_promises_on_a_fresh_seed() {
    let seed = fastrand::u64(..).to_string();
    keeps_its_promises("memory,sqlite", &seed);
}

/// Bugs that show within seconds over SQLite. All of them: `distlock-lab chaos --planted`.
const SOON: &str = "valid-too-long,lease-rounded-down,tokens-stand-still,tokens-by-process,\
                    tokens-by-skewed-clocks,tokens-wrap,hand-over-keeps-token,fails-open,\
                    checks-then-sets,deletes-the-expired,takes-over-early,reaper-eats-live-rows,\
                    keys-by-process,tickets-reused,fence-in-two-steps,\
                    writes-ignore-versions,reads-are-stale,writes-are-forgotten,\
                    deletes-do-nothing,versions-are-reused";

#[test]
fn planted_bugs_are_caught() {
    let only = [
        "--planted",
        "--seconds",
        "15",
        "--seed",
        FIXED,
        "--only",
        SOON,
    ];
    let said = ends(&chaos(&only), 0);
    let caught = said.lines().filter(|it| it.starts_with("caught")).count();
    assert_eq!(caught, SOON.split(',').count(), "{said}");
}

#[test]
fn what_cannot_be_done_is_said() {
    let output = chaos(&["--spawn", "papyrus"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("papyrus") && errors.contains("zookeeper"),
        "{errors}"
    );
    let output = chaos(&["--spawn", "memory", "--faults", "flood"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("flood") && errors.contains("kill-worker"),
        "{errors}"
    );
}
