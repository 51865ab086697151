//! `distlock elect`: several candidates compete, and only the command of the leader runs.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use distlock_harness::{Process, Signal, eventually, servers::redis::RedisServer};

use crate::support::{Home, SOON, finish, read_whole_lines, wait_until_gone};

fn candidate(home: &Home, url: &str, more: &[&str], script: &str) -> Command {
    let mut words = vec!["elect", "scheduler", "--ttl", "2s"];
    words.extend(more);
    words.extend(["--", "sh", "-c", script]);
    let mut command = home.bare(words);
    command.env("DISTLOCK_BACKEND", url);
    command
}

/// The number after a word in the output of a candidate's command.
fn printed_number(process: &Process, word: &str) -> u64 {
    let line = process
        .wait_for_line(SOON, |line| line.starts_with(word))
        .unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

fn assert_one_leads_and_another_takes_over(url: &str) {
    let home = Home::new();
    let log = home.path("log");
    let script = "echo pid $$; echo term $DISTLOCK_TOKEN; while :; do sleep 0.1; done";
    let hooks = [
        "--on-start".to_owned(),
        format!("echo start >> {}", log.display()),
        "--on-end".to_owned(),
        format!("echo end$DISTLOCK_BACKEND >> {}", log.display()),
    ];
    let hooks: Vec<_> = hooks.iter().map(String::as_str).collect();
    let mut first = Process::spawn(&mut candidate(&home, url, &hooks, script)).unwrap();
    let (pid, term) = (
        printed_number(&first, "pid"),
        printed_number(&first, "term"),
    );
    let second = Process::spawn(&mut candidate(&home, url, &hooks, script)).unwrap();

    // The leader's process is killed. Its watchdog ends the command, and the other candidate leads
    // after the lease has expired.
    first.signal(Signal::KILL).unwrap();
    wait_until_gone(u32::try_from(pid).unwrap());
    let next = printed_number(&second, "term");
    assert!(next > term, "{next} after {term}");
    assert_eq!(read_whole_lines(&log), "start\nstart\n");
    let _ = first.wait(SOON).unwrap();

    // Another program frees the lock by force. The command is ended, and its candidate takes part
    // in the election again.
    let free = home.bare(["inspect", "election/scheduler", "--json"]);
    let mut free = free;
    let seat = finish(free.env("DISTLOCK_BACKEND", url), "");
    let seat: serde_json::Value = serde_json::from_str(&seat.stdout).unwrap();
    assert_eq!(seat["token"].as_u64(), Some(next), "{seat}");
    let token = next.to_string();
    let force = ["force-release", "election/scheduler", "--token", &token];
    let forced = finish(home.bare(force).env("DISTLOCK_BACKEND", url), "");
    assert_eq!(forced.code, 0, "{forced:?}");
    eventually("a new term", SOON, || {
        second.output().matches("term ").count() >= 4
    })
    .unwrap();
    assert_eq!(read_whole_lines(&log), "start\nstart\nend\nstart\n");

    // A candidate that gets TERM ends its command first.
    let mut second = second;
    second.signal(Signal::TERM).unwrap();
    assert_eq!(
        second.wait(SOON).unwrap().code(),
        Some(143),
        "{}",
        second.output()
    );
    assert_eq!(read_whole_lines(&log), "start\nstart\nend\nstart\nend\n");
    let left = finish(home.bare(["list"]).env("DISTLOCK_BACKEND", url), "");
    assert_eq!(left.stdout.matches("election/").count(), 0, "{left:?}");
}

#[test]
fn one_leads_and_another_takes_over_on_sqlite() {
    let home = Home::new();
    assert_one_leads_and_another_takes_over(&format!("sqlite:{}", home.store().display()));
}

#[test]
fn one_leads_and_another_takes_over_on_redis() {
    let server = RedisServer::start().unwrap();
    assert_one_leads_and_another_takes_over(&server.url());
}

/// The leader and the candidates at the front of the queue die together. The next living candidate
/// leads when the lease of the lock (2 s) and the queue entries of the dead (4 s) have ended.
#[test]
fn a_candidate_behind_dead_ones_leads_when_their_queue_entries_have_ended() {
    const BOUND: Duration = Duration::from_secs(4);
    /// The start of the command, on a machine that is busy with other tests.
    const SLACK: Duration = Duration::from_millis(1500);
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    let url = server.url();
    let script = "echo term $DISTLOCK_TOKEN; sleep 60";
    let start = || Process::spawn(&mut candidate(&home, &url, &[], script)).unwrap();
    let leader = start();
    let term = printed_number(&leader, "term");
    let waiting: Vec<_> = (1..=3)
        .map(|count| {
            let started = start();
            eventually("it waits", SOON, || {
                let mut shown = home.bare(["inspect", "election/scheduler", "--json"]);
                finish(shown.env("DISTLOCK_BACKEND", &url), "").json()["waiters"] == count
            })
            .unwrap();
            started
        })
        .collect();
    for dies in [&waiting[0], &waiting[1], &leader] {
        dies.signal(Signal::KILL).unwrap();
    }
    let died = Instant::now();
    assert!(printed_number(&waiting[2], "term") > term);
    let took = died.elapsed();
    assert!(
        took > BOUND / 2,
        "the dead candidates did not count: {took:?}"
    );
    assert!(took < BOUND + SLACK, "no leader for {took:?}");
}

/// The candidate resigns after its command has ended, and waits longer each time before it takes
/// part in the election again.
#[test]
fn a_candidate_whose_command_ended_lets_another_lead() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    let ends = Process::spawn(&mut candidate(&home, &url, &[], "echo flaky; exit 3")).unwrap();
    ends.wait_for_line(SOON, |line| {
        line.contains("is a candidate for") && line.ends_with("in 1s")
    })
    .unwrap();
    let stays = Process::spawn(&mut candidate(&home, &url, &[], "echo steady; sleep 60")).unwrap();
    stays.wait_for_line(SOON, |line| line == "steady").unwrap();
    stays.signal(Signal::INT).unwrap();
    ends.wait_for_line(SOON, |line| {
        line.contains("is a candidate for") && line.ends_with("in 2s")
    })
    .unwrap();
    assert!(
        ends.output()
            .contains("the command ended with exit status: 3")
    );
}

#[test]
fn a_signal_ends_a_waiting_candidate_at_once() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    let leads = Process::spawn(&mut candidate(&home, &url, &[], "echo leads; sleep 60")).unwrap();
    leads.wait_for_line(SOON, |line| line == "leads").unwrap();
    let mut waits = Process::spawn(&mut candidate(&home, &url, &[], "echo never")).unwrap();
    let standing = || {
        let list = finish(
            home.bare(["list", "--json"]).env("DISTLOCK_BACKEND", &url),
            "",
        );
        list.stdout.contains("election/scheduler")
    };
    eventually("the seat to be seen", SOON, standing).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    waits.signal(Signal::TERM).unwrap();
    assert_eq!(waits.wait(SOON).unwrap().code(), Some(143));
    assert!(!waits.output().contains("never"));
}

#[test]
fn bad_input_is_refused_with_its_reason() {
    let home = Home::new();
    let run = |args: &[&str]| finish(&mut home.distlock(args), "");
    let late = run(&[
        "elect",
        "x",
        "--ttl",
        "2s",
        "--kill-after",
        "5s",
        "--",
        "true",
    ]);
    assert_eq!(late.code, 64);
    assert!(
        late.stderr.contains("more than half of the TTL"),
        "{late:?}"
    );
    let none = run(&["elect", "x", "--", "/no/such/program"]);
    assert_eq!(none.code, 127, "{none:?}");
}

/// The candidate must also handle a signal while it ends the rest of its command's group.
#[test]
fn a_candidate_that_gets_a_signal_does_not_stand_again() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    let script = "(trap '' TERM; echo left; while :; do sleep 0.1; done) & sleep 0.3";
    let more = ["--ttl", "8s", "--kill-after", "2s"];
    let mut words = vec!["elect", "leaves"];
    words.extend(more);
    words.extend(["--", "sh", "-c", script]);
    let mut command = home.bare(words);
    let mut leaves = Process::spawn(command.env("DISTLOCK_BACKEND", &url)).unwrap();
    leaves.wait_for_line(SOON, |line| line == "left").unwrap();
    std::thread::sleep(Duration::from_millis(800));
    leaves.signal(Signal::TERM).unwrap();
    assert_eq!(
        leaves.wait(SOON).unwrap().code(),
        Some(0),
        "{}",
        leaves.output()
    );
    assert!(
        !leaves.output().contains("is a candidate for"),
        "{}",
        leaves.output()
    );
}
