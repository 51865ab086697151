//! `distlock run --every`: many hosts start a job, and one host runs it in each period.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use distlock_harness::{
    Process, Signal, eventually,
    servers::{
        mysql::{MySqlServer, Product},
        postgres::PostgresServer,
        redis::RedisServer,
        zookeeper::ZooKeeper,
    },
};

use crate::support::{Finished, Home, SOON, finish, read_whole_lines};

/// The number of hosts that start a job in the same second.
const HOSTS: usize = 20;

/// A call of `distlock run` that runs a script.
fn tool(home: &Home, url: &str, name: &str, args: &[&str], script: &str) -> Command {
    let mut line = vec!["run", name];
    line.extend(args);
    line.extend(["--", "sh", "-c", script]);
    let mut command = home.bare(line);
    command.env("DISTLOCK_BACKEND", url);
    command
}

fn run(home: &Home, url: &str, name: &str, args: &[&str], script: &str) -> Finished {
    finish(&mut tool(home, url, name, args, script), "")
}

/// Checks the promises of `--every` on a store.
fn assert_once_per_period(url: &str) {
    let home = Home::new();
    let log = home.path("log");
    let script = format!("echo ran >> {}", log.display());
    let period = Duration::from_secs(20);
    let every = ["--every", "20s", "--every-exit-code", "7"];
    for times in 1..=2 {
        let mut hosts: Vec<_> = (0..HOSTS)
            .map(|_| Process::spawn(&mut tool(&home, url, "job", &every, &script)).unwrap())
            .collect();
        let codes: Vec<_> = hosts
            .iter_mut()
            .map(|host| host.wait(SOON).unwrap().code().unwrap())
            .collect();
        assert_eq!(read_whole_lines(&log), "ran\n".repeat(times));
        assert_eq!(codes.iter().filter(|code| **code == 0).count(), 1);
        assert_eq!(codes.iter().filter(|code| **code == 7).count(), HOSTS - 1);
        if times == 1 {
            // The period begins with the start of the job.
            std::thread::sleep(period);
        }
    }

    // A host dies during the job. The period is used, unless the job is to be retried.
    let dying = ["--every", "1h", "--ttl", "1s"];
    let mut dies = tool(&home, url, "dies", &dying, "echo ready; exec sleep 10");
    let mut dies = Process::spawn(&mut dies).unwrap();
    dies.wait_for_line(SOON, |line| line == "ready").unwrap();
    dies.signal(Signal::KILL).unwrap();
    dies.wait(SOON).unwrap();
    let once = |script| run(&home, url, "dies", &["--every", "1h"], script);
    let retry = ["--every", "1h", "--retry-failed"];
    let again = |script| run(&home, url, "dies", &retry, script);
    let beside = once("exit 9");
    assert_eq!((beside.code, &*beside.stdout), (0, ""), "{beside:?}");
    eventually("the retry", SOON, || again("exit 5").code == 5).unwrap();
    let done = again("echo done");
    assert_eq!((done.code, &*done.stdout), (0, "done\n"), "{done:?}");
    // A call without `--retry-failed` uses the same record.
    assert_eq!(once("exit 9").code, 0);
    let over = again("exit 9");
    assert_eq!(over.code, 0, "{over:?}");
    assert!(
        over.stderr.contains("not run: \"dies\" was started"),
        "{over:?}"
    );
    assert_lost_lock_uses_the_period(&home, url);
    assert_refused_start_leaves_the_period(&home, url);
}

/// Checks that a host on which the system refuses to start the command leaves the period to the
/// other hosts.
fn assert_refused_start_leaves_the_period(home: &Home, url: &str) {
    let executable = |name: &str, text: &str| {
        let path = home.write(name, text);
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path.into_os_string().into_string().unwrap()
    };
    let path = |path: PathBuf| path.into_os_string().into_string().unwrap();
    let plain = path(home.write("plain", "#!/bin/sh\n"));
    let call = |program: &str, name: &str, args: &[&str]| {
        let line = [&["run", name], args, &["--", program]].concat();
        finish(home.bare(line).env("DISTLOCK_BACKEND", url), "")
    };
    let once = &["--every", "1d"][..];
    // The system finds out about the last two only when it executes them.
    let broken = executable("broken", "#!/missing/interpreter\n");
    let denied = executable("denied", &format!("#!{plain}\n"));
    for (name, program, code) in [
        ("missing", "/opt/missing", 127),
        ("unknown", "no-such-program", 127),
        ("folder", &*path(home.path(".")), 126),
        ("plain", &plain, 126),
        ("broken", &broken, 127),
        ("denied", &denied, 126),
    ] {
        call(program, name, once).assert_failed(code, "cannot run");
        let other = run(home, url, name, once, "echo ran");
        assert_eq!(
            (other.code, &*other.stdout),
            (0, "ran\n"),
            "{name}: {other:?}"
        );
    }

    // A host that lacks the command says so, and never holds the lock.
    let mut holds = tool(home, url, "busy", &[], "echo ready; exec sleep 60");
    let mut holds = Process::spawn(&mut holds).unwrap();
    holds.wait_for_line(SOON, |line| line == "ready").unwrap();
    call("/opt/missing", "busy", once).assert_failed(127, "cannot run");
    holds.signal(Signal::TERM).unwrap();
    holds.wait(SOON).unwrap();

    // A retry that the system refuses neither uses the period nor begins a new one.
    let retry = &["--every", "1d", "--retry-failed"][..];
    assert_eq!(run(home, url, "again", once, "exit 5").code, 5);
    call(&broken, "again", retry).assert_failed(127, "cannot run");
    let beside = run(home, url, "again", once, "echo ran");
    assert_eq!((beside.code, &*beside.stdout), (0, ""), "{beside:?}");
    let again = run(home, url, "again", retry, "echo ran");
    assert_eq!((again.code, &*again.stdout), (0, "ran\n"), "{again:?}");
}

/// Checks that a job that loses its lock is killed, and has used the period.
fn assert_lost_lock_uses_the_period(home: &Home, url: &str) {
    let every = ["--every", "1h", "--ttl", "2s"];
    let mut loses = tool(
        home,
        url,
        "loses",
        &every,
        "echo $DISTLOCK_TOKEN; exec sleep 30",
    );
    let mut loses = Process::spawn(&mut loses).unwrap();
    let token = loses
        .wait_for_line(SOON, |line| line.parse::<u64>().is_ok())
        .unwrap();
    let force = ["force-release", "loses", "--token", &token];
    let forced = finish(home.bare(force).env("DISTLOCK_BACKEND", url), "");
    assert_eq!(forced.code, 0, "{forced:?}");
    assert_eq!(
        loses.wait(SOON).unwrap().code(),
        Some(76),
        "{}",
        loses.output()
    );
    let once = run(home, url, "loses", &["--every", "1h"], "exit 9");
    assert_eq!(once.code, 0, "{once:?}");
    let again = run(
        home,
        url,
        "loses",
        &["--every", "1h", "--retry-failed"],
        "exit 5",
    );
    assert_eq!(again.code, 5, "{again:?}");
}

/// Checks what `jobs` shows of a job from its start to its end, and that a job can be run again.
fn assert_jobs_are_shown_and_reset(url: &str) {
    let home = Home::new();
    let jobs = |args: &[&str]| {
        let line = [&["jobs"], args].concat();
        finish(home.bare(line).env("DISTLOCK_BACKEND", url), "")
    };
    let shown = |name: &str| {
        let done = jobs(&[name, "--json"]);
        assert_eq!(done.code, 0, "{url}: {done:?}");
        done.json()
    };
    let empty = jobs(&[]);
    assert_eq!((empty.code, &*empty.stdout), (0, ""), "{empty:?}");
    assert!(empty.stderr.contains("no job of"), "{empty:?}");

    let every = ["--every", "1h", "--holder", "ada@host 7"];
    let held = ["--every", "1h", "--holder", "ada@host 7", "--ttl", "1s"];
    assert_eq!(run(&home, url, "good", &every, "true").code, 0);
    assert_eq!(run(&home, url, "bad", &every, "exit 3").code, 3);
    let mut dies = Process::spawn(&mut tool(&home, url, "dies", &held, "exec sleep 60")).unwrap();
    eventually("it is on record", SOON, || {
        !jobs(&["dies", "--json"]).stdout.is_empty()
    })
    .unwrap();
    assert_eq!(shown("dies")["outcome"], "running", "{url}");
    dies.signal(Signal::KILL).unwrap();
    dies.wait(SOON).unwrap();
    eventually("its lease ends", SOON, || {
        shown("dies")["outcome"] == "unknown"
    })
    .unwrap();

    for (name, outcome) in [
        ("good", "succeeded"),
        ("bad", "failed"),
        ("dies", "unknown"),
    ] {
        let job = shown(name);
        assert_eq!(job["name"], name, "{url}: {job}");
        assert_eq!(job["outcome"], outcome, "{url}: {job}");
        assert_eq!(job["started_by"], "ada@host 7", "{url}: {job}");
        assert_eq!(job["every_ms"], 3_600_000, "{url}: {job}");
        // The next start is due after nine tenths of the period.
        let due = job["due_in_ms"].as_u64().unwrap();
        let latest = 3_600_000 / 10 * 9;
        assert!(due <= latest && due > latest - 300_000, "{url}: {job}");
        assert!(
            job["started_at"].as_str() < job["due_at"].as_str(),
            "{url}: {job}"
        );
    }
    let text = jobs(&[]).stdout;
    let rows: Vec<_> = text.lines().collect();
    assert_eq!(rows.len(), 4, "{text}");
    assert!(
        rows[0].trim_start().starts_with("NAME") && rows[1].trim_start().starts_with("bad "),
        "{text}"
    );
    for words in ["ada@host 7", "failed", " 1h "] {
        assert!(rows[1].contains(words), "{words}: {text}");
    }

    // After a reset the job runs again, once, and that start counts.
    let before = run(&home, url, "bad", &every, "echo ran");
    assert!(before.stderr.contains("was started"), "{before:?}");
    let reset = jobs(&["--reset", "bad", "--json"]);
    assert_eq!(reset.code, 0, "{reset:?}");
    assert_eq!(reset.json()["reset"], true, "{reset:?}");
    assert_eq!(
        jobs(&["bad", "--json"]).stdout,
        "",
        "due, and not on record"
    );
    let again = run(&home, url, "bad", &every, "echo ran");
    assert_eq!((again.code, &*again.stdout), (0, "ran\n"), "{again:?}");
    let over = run(&home, url, "bad", &every, "echo ran");
    assert_eq!((over.code, &*over.stdout), (0, ""), "{over:?}");
    assert_eq!(shown("bad")["outcome"], "succeeded", "{url}");
    jobs(&["--reset", "unheard-of"]).assert_failed(64, "no start of \"unheard-of\"");
}

#[test]
fn jobs_are_shown_and_reset_on_sqlite() {
    let home = Home::new();
    assert_jobs_are_shown_and_reset(&format!("sqlite:{}", home.store().display()));
}

#[test]
fn jobs_are_shown_and_reset_on_redis() {
    let server = RedisServer::start().unwrap();
    assert_jobs_are_shown_and_reset(&server.url());
}

#[test]
fn jobs_are_shown_and_reset_on_postgres() {
    let server = PostgresServer::start().unwrap();
    assert_jobs_are_shown_and_reset(&server.url());
}

/// The store is away when the job is due. Nothing is recorded, so the same line runs the job when
/// the store is back.
#[test]
fn a_job_stays_due_while_the_store_is_away() {
    let (home, mut server) = (Home::new(), RedisServer::start().unwrap());
    let (url, once) = (server.url(), &["--every", "1d"][..]);
    server.kill();
    for _ in 0..2 {
        run(&home, &url, "job", once, "echo ran").assert_failed(69, "redis");
    }
    server.restart().unwrap();
    let back = run(&home, &url, "job", once, "echo ran");
    assert_eq!((back.code, &*back.stdout), (0, "ran\n"), "{back:?}");
}

#[test]
fn a_job_runs_once_per_period_on_sqlite() {
    let home = Home::new();
    assert_once_per_period(&format!("sqlite:{}", home.store().display()));
}

#[test]
fn a_job_runs_once_per_period_on_redis() {
    let server = RedisServer::start().unwrap();
    assert_once_per_period(&server.url());
}

#[test]
fn a_job_runs_once_per_period_on_postgres() {
    let server = PostgresServer::start().unwrap();
    assert_once_per_period(&server.url());
}

#[test]
fn a_job_runs_once_per_period_on_mariadb() {
    let server = MySqlServer::start(Product::MariaDb).unwrap();
    assert_once_per_period(&server.url());
}

#[test]
fn a_job_runs_once_per_period_on_mysql() {
    let server = MySqlServer::start(Product::MySql).unwrap();
    assert_once_per_period(&server.url());
}

/// A host is shut down while the store is slow to record its start.
#[test]
fn a_host_that_is_stopped_before_the_command_starts_leaves_the_period() {
    let (home, server) = (Home::new(), PostgresServer::start().unwrap());
    let (url, once) = (server.url(), &["--every", "1d"][..]);
    assert_eq!(run(&home, &url, "first", once, "exit 0").code, 0);
    let mut stopped = tool(&home, &url, "job", once, "echo ran");
    std::thread::scope(|scope| {
        // This transaction lets others read the records, and makes them wait before they write.
        let writes = scope.spawn(|| {
            server.sql(
                "BEGIN; LOCK TABLE distributed_record IN SHARE MODE; SELECT pg_sleep(2); COMMIT",
            )
        });
        let is = |what: &str, condition: &str| {
            let query = format!("SELECT count(*) FROM pg_locks WHERE {condition}");
            eventually(what, SOON, || server.sql(&query).unwrap().trim() != "0").unwrap();
        };
        is("the table is locked", "mode = 'ShareLock' AND granted");
        let mut stopped = Process::spawn(&mut stopped).unwrap();
        is("the record waits", "NOT granted");
        stopped.signal(Signal::TERM).unwrap();
        let status = stopped.wait(SOON).unwrap();
        assert_eq!(status.code(), Some(143), "{}", stopped.output());
        assert!(!stopped.output().contains("ran"), "{}", stopped.output());
        writes.join().unwrap().unwrap();
    });
    let other = run(&home, &url, "job", once, "echo ran");
    assert_eq!((other.code, &*other.stdout), (0, "ran\n"), "{other:?}");
}

#[test]
fn a_store_that_tells_no_ages_is_refused() {
    let (home, ensemble) = (Home::new(), ZooKeeper::start().unwrap());
    let url = format!("zookeeper://{}/app?session_timeout=5s", ensemble.servers());
    let refused = run(&home, &url, "job", &["--every", "1h"], "echo ran");
    refused.assert_failed(78, "tell no ages");
    assert_eq!(refused.stdout, "");
}

#[test]
fn wrong_periods_are_refused() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    for (args, code, says) in [
        (&["--every", "0s"][..], 64, "0ns"),
        (&["--every", "9000h"], 64, "366 days"),
        (&["--retry-failed"], 64, "--every"),
        (&["--every", "1h", "-E", "3"], 64, "--busy-exit-code"),
        (&["--every", "1h", "--min-hold", "3s"], 64, "--min-hold"),
    ] {
        run(&home, &url, "job", args, "echo ran").assert_failed(code, says);
    }
}
