//! Short runs of the chaos lab. `scripts/soak chaos` runs all stores, all planted bugs and long
//! runs.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    process::{Command, Output},
};

/// A fixed seed: the faults are the same every time, but the scheduling of processes is not.
const FIXED: &str = "20260101";
const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/seeds/chaos.txt");

fn chaos(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_distlock-lab"))
        .arg("chaos")
        .args(arguments)
        .output()
        .unwrap()
}

/// Asserts the exit code, and returns the output.
fn assert_exit(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}{errors}");
    said
}

/// Makes one short run. The error is the output of the run.
fn run_chaos(store: &str, seed: u64) -> Result<(), String> {
    let output = chaos(&[
        "--spawn",
        store,
        "--seconds",
        "6",
        "--seed",
        &seed.to_string(),
    ]);
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{store} with seed {seed}: {said}{errors}"))
}

/// Returns the kept seeds of a store.
fn kept_seeds(store: &str) -> Vec<u64> {
    let seeds = fs::read_to_string(SEEDS).unwrap();
    let of_store = |line: &str| line.strip_prefix(store)?.trim().parse().ok();
    seeds.lines().filter_map(of_store).collect()
}

/// Keeps a seed, so that later tests try it again.
fn keep_seed(store: &str, seed: u64) {
    let mut seeds = OpenOptions::new().append(true).open(SEEDS).unwrap();
    writeln!(seeds, "{store} {seed}").unwrap();
}

fn assert_promises_are_kept(store: &str) {
    let kept = kept_seeds(store);
    assert!(!kept.is_empty(), "{SEEDS} has no seed for {store}");
    for seed in kept {
        run_chaos(store, seed).unwrap();
    }
    let fresh = fastrand::u64(..);
    if let Err(said) = run_chaos(store, fresh) {
        keep_seed(store, fresh);
        panic!("{said}; the seed is kept in {SEEDS}");
    }
}

macro_rules! stores {
    ($($store:ident)+) => {$(
        #[test]
        fn $store() {
            assert_promises_are_kept(&stringify!($store).replace('_', "-"));
        }
    )+};
}

/// Each store runs on its kept seeds and on a fresh seed.
mod keeps_its_promises {
    use super::assert_promises_are_kept;

    stores! { memory sqlite redis mariadb postgres zookeeper quorum ring lock_server agents }
}

#[test]
fn chosen_workloads_run_and_unknown_workloads_are_refused() {
    let said = assert_exit(
        &chaos(&[
            "--spawn",
            "sqlite",
            "--seconds",
            "4",
            "--seed",
            FIXED,
            "--workloads",
            "local-queues,recipes",
        ]),
        0,
    );
    assert!(said.contains("sqlite"), "{said}");
    let output = chaos(&["--spawn", "sqlite", "--workloads", "prayers"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        errors.contains("prayers") && errors.contains("recipes"),
        "{errors}"
    );
}

#[test]
fn gateways_keep_their_promises_on_a_fixed_seed() {
    let said = assert_exit(
        &chaos(&[
            "--gateways",
            "--spawn",
            "memory,sqlite",
            "--seconds",
            "6",
            "--seed",
            FIXED,
        ]),
        0,
    );
    // A run without any superseded session proves nothing.
    assert!(
        said.contains("memory     not applicable") && said.contains(" I6:"),
        "{said}"
    );
}

/// Bugs that show within seconds over SQLite. `distlock-lab chaos --planted` runs all bugs.
const SOON: &str = "valid-too-long,lease-rounded-down,tokens-stand-still,tokens-by-process,\
                    tokens-by-skewed-clocks,tokens-wrap,hand-over-keeps-token,fails-open,\
                    checks-then-sets,deletes-the-expired,takes-over-early,reaper-eats-live-rows,\
                    keys-by-process,tickets-reused,fence-in-two-steps,\
                    writes-ignore-versions,reads-are-stale,writes-are-forgotten,\
                    deletes-do-nothing,versions-are-reused,starts-are-forgotten,\
                    effects-are-forgotten,gates-forget,counters-are-overwritten,\
                    holders-are-overwritten,holders-are-forgotten,live-holders-are-buried,\
                    holders-tokens-stand-still,order-is-forgotten";

/// Bugs of lock servers, of agents and of rings. All lists run at the same time.
const OF_SERVERS: [&str; 3] = [
    "recovery-from-start,proofs-are-not-checked",
    "counts-from-is-dropped,lease-from-joining",
    "moved-at-once,moved-guards-stay",
];

fn assert_caught(bugs: &str) {
    let only = [
        "--planted",
        "--seconds",
        "15",
        "--seed",
        FIXED,
        "--only",
        bugs,
    ];
    let said = assert_exit(&chaos(&only), 0);
    let caught = said.lines().filter(|it| it.starts_with("caught")).count();
    assert_eq!(caught, bugs.split(',').count(), "{said}");
}

#[test]
fn planted_bugs_are_caught() {
    assert_caught(SOON);
}

#[test]
fn planted_bugs_of_lock_servers_and_of_rings_are_caught() {
    std::thread::scope(|scope| {
        for bugs in OF_SERVERS {
            scope.spawn(|| assert_caught(bugs));
        }
    });
}

#[test]
fn unknown_stores_and_faults_are_refused_with_the_known_names() {
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
