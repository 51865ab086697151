//! The watchdog of `distlock run` and `elect`: it may be late, die, or kill by mistake.

use std::{
    fs,
    io::Write as _,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    limited_user::LimitedUser,
    run::printed_id,
    support::{Home, SOON, read_whole_lines, state_of, wait_until_gone},
};
use distlock_harness::{Process, Signal, eventually, signal};

/// Waits until the tool has a watchdog other than `before`, and returns its process id.
#[track_caller]
fn watchdog_of(tool: &Process, before: Option<u32>) -> u32 {
    let mut found = None;
    eventually("the tool has a watchdog", SOON, || {
        let tool = tool.id().to_string();
        let ids = Command::new("pgrep")
            .args(["-P", &tool, "-f", "watchdog"])
            .output()
            .unwrap();
        let ids = String::from_utf8(ids.stdout).unwrap();
        found = ids
            .lines()
            .map(|id| id.parse().unwrap())
            .find(|id| Some(*id) != before && state_of(*id).is_some());
        found.is_some()
    })
    .unwrap();
    found.unwrap()
}

/// Stops a process, and waits until it is stopped.
#[track_caller]
fn stop(process: u32) {
    signal(process, Signal::STOP).unwrap();
    eventually("it is stopped", SOON, || state_of(process) == Some('T')).unwrap();
}

/// Makes the watchdog kill the command: a deadline that has passed is put into its pipe behind the
/// true ones.
fn make_it_kill(watchdog: u32) {
    let mut pipe = fs::File::options()
        .write(true)
        .open(format!("/proc/{watchdog}/fd/0"))
        .unwrap();
    pipe.write_all(b"1\n").unwrap();
}

/// The script of a command that ends when the file `go` exists.
const UNTIL_GO: &str = "while ! [ -e go ]; do sleep 0.05; done; echo done";

/// The watchdog has no processor time for several leases, as on a starved host. The tool renews
/// meanwhile.
#[test]
fn a_late_watchdog_judges_by_the_newest_deadline() {
    let home = Home::new();
    let ttl = Duration::from_secs(1);
    let mut run = home.hold("job", &["--ttl", "1s"], UNTIL_GO);
    let watchdog = watchdog_of(&run, None);
    stop(watchdog);
    std::thread::sleep(3 * ttl);
    assert_eq!(home.inspect("job")["state"], "held", "{}", run.output());
    signal(watchdog, Signal::CONT).unwrap();
    // A wrong judgement comes at once, and within one lease for sure.
    std::thread::sleep(ttl);
    assert_eq!(watchdog_of(&run, None), watchdog);
    home.write("go", "");
    assert_eq!(run.wait(SOON).unwrap().code(), Some(0), "{}", run.output());
    assert_eq!(run.output(), "ready\ndone");
}

/// The tool renews while its watchdog is stopped, and is killed then. The kernel sends HUP and CONT
/// to the watchdog, whose group is orphaned and stopped. The newest lease has time left, so the
/// command is asked to end, and not killed at once.
#[test]
fn a_stopped_watchdog_of_a_killed_tool_ends_the_command_in_order() {
    let home = Home::new();
    let ttl = Duration::from_secs(3);
    let script = "trap 'echo asked > asked; exit 0' TERM; echo outer $$; \
                  while :; do sleep 0.05; done";
    let run = home.start(["run", "job", "--ttl", "3s", "--", "sh", "-c", script]);
    let outer = printed_id(&run, "outer");
    let watchdog = watchdog_of(&run, None);
    stop(watchdog);
    std::thread::sleep(ttl + ttl / 4);
    run.signal(Signal::KILL).unwrap();
    wait_until_gone(outer);
    assert_eq!(read_whole_lines(&home.path("asked")), "asked\n");
    wait_until_gone(watchdog);
}

#[test]
fn a_kill_by_the_watchdog_is_76_and_is_told() {
    let home = Home::new();
    for round in 0..5 {
        let mut run = home.hold("job", &["--ttl", "20s"], "sleep 60 & echo inner $!; wait");
        let inner = printed_id(&run, "inner");
        make_it_kill(watchdog_of(&run, None));
        let code = run.wait(SOON).unwrap().code();
        let output = run.output();
        assert_eq!(code, Some(76), "round {round}: {output}");
        assert!(output.contains("the watchdog killed"), "{output}");
        assert!(state_of(inner).is_none(), "{output}");
        // The lock was held, so it is released and not left to its TTL.
        assert_eq!(home.inspect("job")["state"], "free");
    }
}

/// A kill by the watchdog is no end of the command's own, so the candidate makes no pause.
#[test]
fn a_candidate_whose_watchdog_killed_stands_again_at_once() {
    let home = Home::new();
    let script = "echo term $DISTLOCK_TOKEN; sleep 60";
    let words = ["elect", "seat", "--ttl", "20s", "--", "sh", "-c", script];
    let candidate = home.start(words);
    let terms = || candidate.output().matches("\nterm ").count();
    for term in 1..=3 {
        eventually("the next term", SOON, || terms() == term).unwrap();
        make_it_kill(watchdog_of(&candidate, None));
    }
    eventually("the last term", SOON, || terms() == 4).unwrap();
    let output = candidate.output();
    assert!(output.contains("the watchdog killed"), "{output}");
    assert!(!output.contains("is a candidate for"), "{output}");
}

#[test]
fn a_dead_watchdog_is_replaced_and_the_next_one_ends_the_command_of_a_killed_tool() {
    let home = Home::new();
    let run = home.hold("job", &["--ttl", "20s"], "echo outer $$; sleep 60");
    let outer = printed_id(&run, "outer");
    let mut watchdog = watchdog_of(&run, None);
    for _ in 0..2 {
        signal(watchdog, Signal::KILL).unwrap();
        run.wait_for_line(SOON, |line| line.contains("starting another one"))
            .unwrap();
        watchdog = watchdog_of(&run, Some(watchdog));
    }
    let output = run.output();
    assert!(output.contains("SIGKILL"), "{output}");
    assert!(state_of(outer).is_some(), "{output}");
    let began = Instant::now();
    run.signal(Signal::KILL).unwrap();
    wait_until_gone(outer);
    // It was asked to end, long before its lease would have ended.
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_command_with_a_replaced_watchdog_ends_as_usual() {
    let home = Home::new();
    let mut run = home.hold("job", &["--ttl", "1s"], UNTIL_GO);
    let first = watchdog_of(&run, None);
    signal(first, Signal::KILL).unwrap();
    let second = watchdog_of(&run, Some(first));
    std::thread::sleep(Duration::from_secs(2));
    home.write("go", "");
    assert_eq!(run.wait(SOON).unwrap().code(), Some(0), "{}", run.output());
    wait_until_gone(second);
}

/// If the system refuses a process, the tool goes on, says that the command has no watchdog, and
/// starts one as soon as it can.
#[test]
fn a_refused_watchdog_is_started_later() {
    let user = LimitedUser::new();
    let script = "echo outer $$; while :; do read line < nothing; done";
    let folder = user.tool.parent().unwrap();
    let nothing = Command::new("mkfifo").arg(folder.join("nothing")).status();
    assert!(nothing.unwrap().success());
    let words = ["run", "job", "--ttl", "20s", "--", "sh", "-c", script];
    let run = Process::spawn(&mut user.tool(None, &words)).unwrap();
    let outer = printed_id(&run, "outer");
    let first = watchdog_of(&run, None);
    let limit = |processes: &str| user.limit_processes(run.id(), processes);
    limit("1:");
    signal(first, Signal::KILL).unwrap();
    let refused = |line: &str| line.contains("no watchdog can be started");
    run.wait_for_line(SOON, refused).unwrap();
    assert!(state_of(outer).is_some());
    limit("1000:");
    let again = |line: &str| line.contains("has a watchdog again");
    run.wait_for_line(SOON, again).unwrap();
    assert_eq!(run.output().matches("no watchdog can").count(), 1);
    watchdog_of(&run, Some(first));
    run.signal(Signal::KILL).unwrap();
    wait_until_gone(outer);
}
