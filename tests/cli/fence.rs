//! `distlock fence`: a step that only the latest holder may take.

use std::{fs, process::Command};

use distlock_harness::{
    Process, eventually,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::RedisServer,
        zookeeper::ZooKeeper,
    },
};

use crate::support::{Finished, Home, SOON, finish, read_whole_lines};

/// Runs `distlock fence` with options that say where its tokens are kept.
fn fence(home: &Home, place: &[&str], args: &[&str]) -> Finished {
    let words = ["fence"].iter().chain(args).copied();
    // These options come before `--` and the words of the command.
    let words: Vec<_> = match args.iter().position(|word| *word == "--") {
        Some(at) => words
            .clone()
            .take(at + 1)
            .chain(place.iter().copied())
            .chain(words.skip(at + 1))
            .collect(),
        None => words.chain(place.iter().copied()).collect(),
    };
    finish(&mut home.bare(words), "")
}

/// Runs the checks on the store of a URL. The URL holds a password, and every user can read
/// arguments, so a configuration file names the store.
fn assert_only_the_latest_passes_in(url: &str) {
    let home = Home::new();
    let config = home.write("store.toml", &format!("[backend]\nurl = \"{url}\"\n"));
    assert_only_the_latest_passes(&["--config", config.to_str().unwrap()]);
}

/// Checks the promises of `fence`. `place` are the options that say where the tokens are kept.
fn assert_only_the_latest_passes(place: &[&str]) {
    let home = Home::new();
    let log = home.path("log");
    let step = format!("echo step >> {}", log.display());
    let take = |token: &str| {
        let args = ["backup", "--token", token, "--", "sh", "-c", &step];
        fence(&home, place, &args)
    };
    let check = |token: &str| {
        fence(
            &home,
            place,
            &["check", "backup", "--token", token, "--json"],
        )
    };
    assert_eq!(check("1").code, 0, "nobody was seen");
    assert_eq!(
        (take("41").code, take("41").code, take("42").code),
        (0, 0, 0)
    );
    let refused = take("41");
    assert_eq!(refused.code, 76);
    assert!(
        refused.stderr.contains("41 is older than 42"),
        "{refused:?}"
    );
    assert_eq!(read_whole_lines(&log), "step\n".repeat(3));
    let checked = check("41");
    assert_eq!(checked.code, 76, "{checked:?}");
    assert!(
        checked.stdout.contains("\"highest_seen\":42"),
        "{checked:?}"
    );
    assert_eq!(
        (check("42").code, check("43").code, take("42").code),
        (0, 0, 0)
    );
    assert_eq!(fence(&home, place, &["reset", "backup"]).code, 0);
    assert_eq!(take("1").code, 0);
    let args = ["backup", "--token", "1", "--", "sh", "-c", "exit 5"];
    assert_eq!(fence(&home, place, &args).code, 5, "the command's own");
}

#[test]
fn only_the_latest_holder_passes_with_tokens_in_a_file() {
    let home = Home::new();
    let path = home.path("gate");
    assert_only_the_latest_passes(&["--file", path.to_str().unwrap()]);
    let place = ["--file", path.to_str().unwrap()];
    let other = fence(&home, &place, &["other", "--token", "9", "--", "true"]);
    assert_eq!(other.code, 64);
    assert!(
        other
            .stderr
            .contains("is for \"backup\", not for \"other\""),
        "{other:?}"
    );
}

#[test]
fn only_the_latest_holder_passes_with_tokens_in_sqlite() {
    let home = Home::new();
    assert_only_the_latest_passes(&["--backend", &format!("sqlite:{}", home.store().display())]);
}

#[test]
fn only_the_latest_holder_passes_with_tokens_in_redis() {
    let server = RedisServer::start().unwrap();
    assert_only_the_latest_passes_in(&server.url());
}

#[test]
fn only_the_latest_holder_passes_with_tokens_in_postgres() {
    let server = PostgresServer::start().unwrap();
    assert_only_the_latest_passes_in(&server.url());
}

#[test]
fn only_the_latest_holder_passes_with_tokens_in_mariadb() {
    let server = MySqlServer::start(Product::MariaDb).unwrap();
    assert_only_the_latest_passes_in(&server.url());
}

#[test]
fn only_the_latest_holder_passes_with_tokens_in_zookeeper() {
    let server = ZooKeeper::start().unwrap();
    assert_only_the_latest_passes_in(&format!("zookeeper://{}", server.servers()));
}

#[test]
fn bad_input_is_refused_with_its_reason() {
    let home = Home::new();
    let run = |args: &[&str]| finish(&mut home.distlock(args), "");
    let none = run(&["fence", "backup", "--", "true"]);
    assert_eq!(none.code, 64);
    assert!(none.stderr.contains("no token: give --token"), "{none:?}");
    let mut command = home.distlock(["fence", "backup", "--", "true"]);
    let odd = finish(command.env("DISTLOCK_TOKEN", "many"), "");
    assert_eq!(odd.code, 64);
    assert!(odd.stderr.contains("DISTLOCK_TOKEN is \"many\""), "{odd:?}");
    let both = ["--file", "x", "--backend", "sqlite:y", "--token", "1"];
    let both = [&["fence", "backup"][..], &both, &["--", "true"]].concat();
    let both = finish(&mut home.bare(both), "");
    assert_eq!(both.code, 64);
    assert!(both.stderr.contains("give one"), "{both:?}");
    let gone = run(&["fence", "backup", "--token", "1", "--", "/no/such/program"]);
    assert_eq!(gone.code, 127);
}

/// Runs the script of docs/recipes.md twice. One run is stopped in the middle for longer than its
/// lease. When this run continues, its result is older than the stored result.
#[test]
fn a_backup_that_was_stopped_in_the_middle_replaces_nothing() {
    let home = Home::new();
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/recipes.md"));
    let guide = guide.unwrap();
    let script = guide
        .split("```sh\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    assert!(script.contains("distlock fence"), "{script}");
    let (bin, file) = (home.path("bin"), home.path("backup.sh"));
    fs::create_dir(&bin).unwrap();
    fs::write(&file, script).unwrap();
    // The first dump takes long. It contains the state at its start.
    let dump = home.path("bin/dump-shop");
    let state = home.path("state");
    let program = format!(
        "#!/bin/sh\nbefore=$(cat {0}); echo $before >> {0}.dumped\n[ $before = old ] && sleep \
        4\necho $before\n",
        state.display()
    );
    fs::write(&dump, program).unwrap();
    let tool = env!("CARGO_BIN_EXE_distlock");
    let set_up = format!(
        "chmod +x {} && ln -s {tool} {}/distlock",
        dump.display(),
        bin.display()
    );
    assert!(
        Command::new("sh")
            .args(["-c", &set_up])
            .status()
            .unwrap()
            .success()
    );
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let backup = || {
        let mut command = home.distlock(["run", "nightly", "--ttl", "1s", "--wait", "20s", "--"]);
        command.args(["sh", file.to_str().unwrap()]);
        command
            .env("PATH", &path)
            .env("BACKUPS", home.path("backups"));
        command
    };
    fs::create_dir(home.path("backups")).unwrap();
    fs::write(&state, "old").unwrap();
    let mut first = Process::spawn(&mut backup()).unwrap();
    let dumped = home.path("state.dumped");
    eventually("the first dump", SOON, || {
        read_whole_lines(&dumped).contains("old")
    })
    .unwrap();
    // Stops the supervisor and its watchdog. Their command runs on after the end of the lease, as
    // on a machine that wakes up and runs the command first.
    let stop = format!("kill -STOP {0} $(pgrep -P {0} -f watchdog)", first.id());
    let stopped = Command::new("sh").args(["-c", &stop]).status().unwrap();
    assert!(stopped.success());
    fs::write(&state, "new").unwrap();
    let second = finish(&mut backup(), "");
    assert_eq!(second.code, 0, "{second:?}");
    let result = home.path("backups/shop.sql");
    assert_eq!(read_whole_lines(&result), "new\n");
    eventually("the first one's late step", SOON, || {
        first.output().contains("older than")
    })
    .unwrap();
    assert_eq!(read_whole_lines(&result), "new\n");
    let go_on = format!("kill -CONT {0} $(pgrep -P {0} -f watchdog)", first.id());
    let goes_on = Command::new("sh").args(["-c", &go_on]).status().unwrap();
    assert!(goes_on.success());
    let _ = first.wait(SOON).unwrap();
    assert_eq!(read_whole_lines(&result), "new\n");
}
