//! `compare`: the three forms of the report, a store that dies during the run, and an interrupted
//! run that is continued.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use distlock_harness::{
    Process, Signal, eventually,
    servers::{cache_folder, redis::RedisServer},
    signal,
};
use serde_json::Value;

use crate::home::{Finished, Home, SOON, finish};

/// A long time limit. Rounds take milliseconds, but the lease of a killed holder has to expire, and
/// the machine may be busy.
const LONG: Duration = Duration::from_secs(240);

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("report.json")).unwrap()).unwrap()
}

#[test]
fn all_forms_of_the_report_are_written_and_can_be_rendered_again() {
    let home = Home::new();
    let mut command = home.bare([
        "compare",
        "--tiny",
        "--spawn",
        "memory,sqlite",
        "--out",
        "out",
    ]);
    let done = finish(&mut command, "");
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(done.stdout, "out/report.html\n");
    // Only one kind of fault can be injected into these stores, so the report must not claim
    // another kind.
    let broken = |line: &&str| line.contains("breaking: ");
    let broken: Vec<_> = done.stderr.lines().filter(broken).collect();
    assert_eq!(broken.len(), 1, "{done:?}");
    assert!(broken[0].contains("breaking: holder-killed"), "{done:?}");
    let out = home.path("out");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("SQLite") && !page.contains("<script"));
    assert!(!page.contains("http://") && !page.contains("https://"));
    let text = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(text.contains("| SQLite |"), "{text}");
    let report = report(&out);
    assert_eq!(report["stores"][1]["key"], "sqlite");
    let killed = &report["scenarios"][0];
    assert_eq!(killed["kind"], "holder_killed");
    assert_eq!(killed["broken"], Value::Null, "{killed}");
    assert_eq!(killed["failed"], Value::Null, "{killed}");
    assert!(killed["next_holder_ms"].as_f64().unwrap() > 0.0);
    // The report has the processor time of other programs, and for a contended lock the share of
    // each process.
    let loads = report["loads"].as_array().unwrap();
    assert!(!loads.is_empty(), "{report}");
    for load in loads {
        let share = load["others_percent"].as_f64().unwrap();
        assert!((0.0..=100.0).contains(&share), "{load}");
    }
    assert!(text.contains("CPU of others: "), "{text}");
    let figures = report["figures"].as_array().unwrap();
    let competing = |measure: &str| {
        let found = figures.iter().find(|it| {
            it["store"] == "sqlite" && it["experiment"] == "processes-4" && it["measure"] == measure
        });
        let found = found.unwrap_or_else(|| panic!("no {measure}"));
        found["rounds"][0].as_f64().unwrap()
    };
    let (least, most) = (competing("least_share"), competing("most_share"));
    assert!(least > 0.0 && least <= 25.0, "{least}");
    assert!((25.0..100.0).contains(&most), "{most}");
    assert!(competing("longest_wait") > 0.0);
    let json = out.join("report.json");
    let again = [
        "compare",
        "--render",
        json.to_str().unwrap(),
        "--out",
        "again",
    ];
    assert_eq!(
        finish(&mut home.bare(again), "").stdout,
        "again/report.html\n"
    );
    let told = finish(home.bare(again).arg("--json"), "");
    assert_eq!(told.json(), report, "as it was told when it was measured");
    assert_eq!(
        fs::read_to_string(home.path("again/report.html")).unwrap(),
        page
    );
    for store in ["memory", "sqlite"] {
        assert!(
            out.join(format!("samples/independent-64.{store}.1.json"))
                .is_file()
        );
    }
}

/// Threads of this test keep every core busy. The command did not start them, so they count as
/// other programs.
#[test]
fn a_busy_machine_is_reported() {
    let home = Home::new();
    let over = AtomicBool::new(false);
    let done = thread::scope(|threads| {
        for _ in 0..thread::available_parallelism().unwrap().get() {
            threads.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let spawn = ["compare", "--tiny", "--spawn", "memory", "--out", "out"];
        let done = finish(&mut home.bare(spawn), "");
        over.store(true, Ordering::Relaxed);
        done
    });
    assert_eq!(done.code, 0, "{done:?}");
    let report = report(&home.path("out"));
    let loads = report["loads"].as_array().unwrap();
    let busy = |it: &&Value| it["others_percent"].as_f64().unwrap() >= 10.0;
    let busy = loads.iter().filter(busy).count();
    assert!(busy > 0, "{loads:?}");
    let text = fs::read_to_string(home.path("out/report.md")).unwrap();
    let named = format!("of CPU went to others in {busy} of {} rounds", loads.len());
    assert!(text.contains(&named), "{named}: {text}");
}

/// Each measurement of another way is a process. This test reads the arguments of those processes,
/// which must not contain the URL of the server, and kills one process.
#[test]
fn other_ways_are_in_the_report_or_reported_as_missing() {
    let home = Home::new();
    let mut command = home.bare(["compare", "--tiny", "--peers", "--spawn", "memory,redis"]);
    let mut running = Process::spawn(command.args(["--out", "out"])).unwrap();
    let mut seen = BTreeMap::new();
    eventually("the comparison ends", LONG, || {
        for (process, arguments) in other_ways(running.id()) {
            let is_new = seen.insert(process, arguments.clone()).is_none();
            if is_new && arguments.starts_with("redis --workload independent") {
                signal(process, Signal::KILL).unwrap();
            }
        }
        !running.is_running().unwrap()
    })
    .unwrap();
    assert_eq!(
        running.wait(SOON).unwrap().code(),
        Some(0),
        "{}",
        running.output()
    );
    let of_redis: Vec<_> = seen
        .values()
        .filter(|it| it.starts_with("redis "))
        .collect();
    assert_eq!(of_redis.len(), 3, "{seen:?}");
    assert!(seen.values().all(|it| !it.contains("://")), "{seen:?}");
    let report = report(&home.path("out"));
    let peers = report["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 6, "{peers:?}");
    assert_eq!(peers[0]["workload"], "uncontended");
    assert_eq!(peers[0]["store"], "memory");
    assert!(
        peers[0]["figures"][0]["cycles_per_second"].is_object(),
        "{}",
        peers[0]
    );
    assert_eq!(peers[1]["callers"], 32);
    assert_eq!(peers[2]["callers"], 256);
    assert_ne!(peers[1]["figures"], peers[2]["figures"], "each is measured");
    let page = fs::read_to_string(home.path("out/report.html")).unwrap();
    for killed in &peers[4..] {
        assert_eq!(killed["workload"], "independent");
        let why = killed["missing"].as_str().unwrap();
        assert!(
            why.contains("distlock-lab peers failed: signal: 9"),
            "{why}"
        );
        assert!(page.contains(why), "{page}");
    }
}

/// The processes of `distlock-lab peers` that `parent` started, with their further arguments.
fn other_ways(parent: u32) -> Vec<(u32, String)> {
    let parent = format!(" {parent} ");
    let read = |process: u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The state and the id of the parent follow the name, which may contain anything.
        let (_, after) = stat.rsplit_once(") ")?;
        if !after.get(1..)?.starts_with(&parent) {
            return None;
        }
        let arguments = fs::read_to_string(format!("/proc/{process}/cmdline")).ok()?;
        let arguments = arguments.replace('\0', " ");
        let (_, further) = arguments.split_once(" peers ")?;
        Some((process, further.to_owned()))
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let home = Home::new();
    home.write("file", "");
    let compare = |args: &[&str]| finish(home.bare(["compare"]).args(args), "");
    compare(&["--render", "nope"]).assert_failed(64, "cannot read nope: No such file");
    let spawn = ["--spawn", "memory", "--out", "file"];
    compare(&spawn).assert_failed(64, "cannot make the folder file: File exists");
}

/// Whether a text contains a URL with a password of the test servers, which is 32 hexadecimal
/// digits.
fn shows_a_password(text: &[u8]) -> bool {
    text.windows(34).any(|part| {
        let is_hex = part[1..33].iter().all(u8::is_ascii_hexdigit);
        (part[0], part[33]) == (b':', b'@') && is_hex
    })
}

/// Whether a process is a descendant of this process.
fn descends_from_this_process(process: &Path) -> bool {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    // The name of the process comes first in the line, and may contain any text.
    let Some((_, fields)) = stat.rsplit_once(") ") else {
        return false;
    };
    let parent = fields.split(' ').nth(1).unwrap_or_default();
    parent == std::process::id().to_string()
        || descends_from_this_process(&Path::new("/proc").join(parent))
}

/// Runs the command to its end. Checks that the passwords of its servers never appear in a process
/// list, in the report or in its output.
fn finish_without_showing_passwords(home: &Home, command: &mut Command) -> Finished {
    let over = AtomicBool::new(false);
    let done = thread::scope(|threads| {
        let watching = threads.spawn(|| {
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                for entry in fs::read_dir("/proc").unwrap().flatten() {
                    let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                    // Other tests may show the passwords of their own servers.
                    if shows_a_password(&arguments) && descends_from_this_process(&entry.path()) {
                        seen.push(String::from_utf8_lossy(&arguments).into_owned());
                    }
                }
                thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        let done = finish(command, "");
        over.store(true, Ordering::Relaxed);
        let seen = watching.join().unwrap();
        assert!(seen.is_empty(), "in a process list: {seen:#?}");
        done
    });
    for said in [&done.stdout, &done.stderr] {
        assert!(!shows_a_password(said.as_bytes()), "{said}");
    }
    for entry in fs::read_dir(home.path("out")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            assert!(!shows_a_password(&fs::read(&path).unwrap()), "{path:?}");
        }
    }
    done
}

#[test]
#[ignore = "minutes long: `scripts/soak compare` runs it"]
fn every_server_can_be_started_and_broken() {
    let home = Home::new();
    let servers = "redis,mariadb,mysql,postgres,zookeeper";
    let mut command = home.bare(["compare", "--tiny", "--spawn", servers, "--out", "out"]);
    // The cache of `scripts/get-server mysql` is outside of this test's home.
    command.env("XDG_CACHE_HOME", cache_folder().parent().unwrap());
    if let Some(mysqld) = std::env::var_os("DISTLOCK_MYSQLD") {
        command.env("DISTLOCK_MYSQLD", mysqld);
    }
    let done = finish_without_showing_passwords(&home, &mut command);
    assert_eq!(done.code, 0, "{done:?}");
    let report = report(&home.path("out"));
    let stores: Vec<_> = report["stores"].as_array().unwrap().iter().collect();
    let keys: Vec<_> = stores
        .iter()
        .map(|it| it["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys.join(","), servers);
    let scenarios = report["scenarios"].as_array().unwrap();
    for (kind, stores) in [
        ("holder_killed", 5),
        ("server_killed", 4),
        ("server_paused", 4),
        ("leader_lost", 1),
    ] {
        let played: Vec<_> = scenarios.iter().filter(|it| it["kind"] == kind).collect();
        assert_eq!(played.len(), stores, "{kind}");
        for scenario in played {
            assert_eq!(scenario["broken"], Value::Null, "{scenario}");
        }
    }
}

#[test]
#[ignore = "minutes long: `scripts/soak compare` runs it"]
fn a_quorum_a_ring_sentinels_and_a_cluster_are_stores_of_their_own() {
    let home = Home::new();
    let servers = "quorum,ring,redis-sentinel,redis-cluster";
    let mut command = home.bare(["compare", "--tiny", "--spawn", servers, "--out", "out"]);
    let done = finish_without_showing_passwords(&home, &mut command);
    assert_eq!(done.code, 0, "{done:?}");
    let report = report(&home.path("out"));
    let stores: Vec<_> = report["stores"].as_array().unwrap().iter().collect();
    let names: Vec<_> = stores
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "Quorum of three Redis",
            "Ring of three Redis",
            "Redis with Sentinel",
            "Redis Cluster"
        ]
    );
    for store in stores {
        for property in store["properties"].as_array().unwrap() {
            assert_eq!(property["failed"], serde_json::json!([]), "{store}");
        }
    }
    for key in servers.split(',') {
        let has = |list: &str, experiment: &str| {
            let mut all = report[list].as_array().unwrap().iter();
            all.any(|it| it["store"] == key && it["experiment"] == experiment)
        };
        for experiment in [
            "uncontended",
            "independent-64",
            "wakeup",
            "processes-4",
            "takeover-cross",
        ] {
            let is_measured = has("figures", experiment) && !has("missing", experiment);
            assert!(is_measured, "{key}: {experiment}");
        }
    }
    let scenarios = report["scenarios"].as_array().unwrap();
    for (kind, stores) in [
        ("holder_killed", 4),
        ("server_killed", 1),
        ("server_paused", 1),
        ("leader_lost", 3),
    ] {
        let played: Vec<_> = scenarios.iter().filter(|it| it["kind"] == kind).collect();
        assert_eq!(played.len(), stores, "{kind}");
        for scenario in played {
            assert_eq!(scenario["failed"], Value::Null, "{scenario}");
        }
    }
    // The fault hit the server that decides about the lock: no server decided about it until its
    // replica took over. No member of a quorum decides alone.
    for scenario in scenarios.iter().filter(|it| it["kind"] == "leader_lost") {
        let took_over = scenario["usable_ms"].as_f64().unwrap() > 1_000.0;
        assert_eq!(took_over, scenario["store"] != "quorum", "{scenario}");
    }
    // Each server reported its own durability.
    let text = fs::read_to_string(home.path("out/report.md")).unwrap();
    for name in &names[2..] {
        let of_store = format!("| {name} | ");
        let said = "durability: append-only file, appendfsync everysec";
        let mut rows = text.lines().filter(|line| line.starts_with(&of_store));
        assert!(rows.any(|row| row.contains(said)), "{name}: {text}");
    }
}

#[test]
fn a_store_that_dies_half_way_leaves_no_number() {
    let home = Home::new();
    let mut server = RedisServer::start().unwrap();
    let url = server.url();
    // Here a store that is given by URL is measured together with a store that is started. No other
    // test does that.
    let mut command = home.bare(["compare", "--tiny", "--backend", &url]);
    command.args(["--spawn", "memory", "--out", "out"]);
    let mut running = Process::spawn(&mut command).unwrap();
    running
        .wait_for_line(LONG, |line| line.contains("measuring independent-64"))
        .unwrap();
    server.kill();
    assert_eq!(
        running.wait(LONG).unwrap().code(),
        Some(1),
        "{}",
        running.output()
    );
    // No fault can be injected into these stores: the command did not start one of them, and the
    // other store ends with its holder.
    assert!(!running.output().contains("breaking: "));
    let out = home.path("out");
    let report = report(&out);
    let stopped = report["stores"][0]["stopped"].as_str().unwrap();
    assert!(stopped.contains("in round"), "{stopped}");
    let has = |list: &str, store: &str, experiment: &str| {
        let all = report[list].as_array().unwrap();
        all.iter()
            .any(|it| it["store"] == store && it["experiment"] == experiment)
    };
    for (store, experiment, is_missing) in [
        ("redis", "takeovers", true),
        ("memory", "takeovers", false),
        ("redis", "independent-1", false),
    ] {
        assert_eq!(
            has("missing", store, experiment),
            is_missing,
            "{experiment}"
        );
        assert_eq!(
            has("figures", store, experiment),
            !is_missing,
            "{experiment}"
        );
    }
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Redis died half-way"));
    let text = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(text.contains("**Redis died half-way"));
}

#[test]
fn an_interrupted_run_goes_on_with_its_finished_rounds() {
    let home = Home::new();
    let arguments = [
        "compare",
        "--tiny",
        "--spawn",
        "memory,sqlite",
        "--out",
        "out",
    ];
    let mut running = Process::spawn(&mut home.bare(arguments)).unwrap();
    running
        .wait_for_line(LONG, |line| line.contains("measuring wake-ups"))
        .unwrap();
    running.signal(Signal::INT).unwrap();
    assert_eq!(
        running.wait(SOON).unwrap().code(),
        Some(130),
        "{}",
        running.output()
    );
    let samples = home.path("out/samples");
    let kept = contents(&samples);
    assert!(
        kept.contains_key("handoff-2.sqlite.1.json"),
        "{:?}",
        kept.keys()
    );

    // A run with another plan must not use the finished rounds.
    let other = ["compare", "--tiny", "--spawn", "memory", "--out", "out"];
    let refused = finish(&mut home.bare(other), "");
    assert_eq!(refused.code, 64, "{refused:?}");
    assert!(refused.stderr.contains("unfinished run"), "{refused:?}");

    let done = finish(&mut home.bare(arguments), "");
    assert_eq!(done.code, 0, "{done:?}");
    let now = contents(&samples);
    for (name, before) in kept.iter().filter(|(name, _)| *name != "run.json") {
        assert_eq!(now.get(name), Some(before), "{name} was measured again");
    }
    assert!(home.path("out/report.html").is_file());
}

#[test]
fn a_terminated_run_leaves_no_temporary_file() {
    let home = Home::new();
    let temporary = home.path("tmp");
    fs::create_dir(&temporary).unwrap();
    let files = || fs::read_dir(&temporary).unwrap().count();
    let spawn = ["--tiny", "--spawn", "memory,sqlite", "--out", "out"];
    let mut compare = home.bare(["compare"].iter().chain(&spawn));
    let mut running = Process::spawn(compare.env("TMPDIR", &temporary)).unwrap();
    eventually("it has temporary files", LONG, || files() > 0).unwrap();
    running.signal(Signal::TERM).unwrap();
    let ended = running.wait(SOON).unwrap();
    assert_eq!(ended.code(), Some(143), "{}", running.output());
    assert_eq!(files(), 0);
}

#[test]
fn arguments_that_give_no_comparison_are_refused() {
    let home = Home::new();
    let nothing = finish(&mut home.bare(["compare"]), "");
    nothing.assert_failed(64, "nothing to compare");
    let unknown = finish(&mut home.bare(["compare", "--spawn", "oracle"]), "");
    unknown.assert_failed(64, "oracle");
    home.write("not.json", "{}");
    let broken = finish(&mut home.bare(["compare", "--render", "not.json"]), "");
    broken.assert_failed(64, "not the report.json");
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect()
}
