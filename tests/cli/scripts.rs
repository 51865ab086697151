//! The scripts of `docs/operations.md`, as printed there, under the shells that people use.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf, process::Command};

use distlock_harness::{Process, Signal, eventually};

use crate::support::{Finished, Home, SOON, finish};

const PAGE: &str = include_str!("../../docs/operations.md");

/// The shells, with the first arguments of a call.
const SHELLS: [&[&str]; 3] = [&["dash"], &["busybox", "sh"], &["bash"]];

/// The signals with which a terminal, a user and a service manager end a script.
const ENDS: [(Signal, i32); 3] = [(Signal::HUP, 129), (Signal::INT, 130), (Signal::TERM, 143)];

/// The script of the page with this text in it.
fn script(marker: &str) -> &'static str {
    let blocks = PAGE.split("```sh\n").skip(1);
    let mut scripts = blocks.map(|block| block.split_once("```").unwrap().0);
    scripts.find(|script| script.contains(marker)).unwrap()
}

/// A call of a script under a shell. Its `distlock` is the tool under test, and its steps are in
/// the folder of the home.
fn under(shell: &[&str], home: &Home, script: &str) -> Command {
    let path = home.write("script", script);
    let link = home.path("distlock");
    if !link.exists() {
        std::os::unix::fs::symlink(crate::PROGRAM, &link).unwrap();
    }
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).arg(path);
    let tool = home.distlock([""; 0]);
    command.current_dir(tool.get_current_dir().unwrap());
    for (name, value) in tool.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let path = std::env::var("PATH").unwrap();
    command.env(
        "PATH",
        format!("{}:{path}", link.parent().unwrap().display()),
    );
    command
}

/// Writes a step of a script.
fn step(home: &Home, name: &str, text: &str) -> PathBuf {
    let path = home.write(name, &format!("#!/bin/sh\n{text}\n"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn is_held(home: &Home) -> bool {
    home.inspect("deploy")["state"] == "held"
}

fn assert_free(home: &Home, about: &str) {
    let seen = home.inspect("deploy");
    assert_eq!(seen["state"], "free", "{about}: {seen}");
}

#[test]
fn the_ticket_script_frees_its_lock_at_each_end() {
    let script = script("./upload");
    for shell in SHELLS {
        let home = Home::new();
        step(&home, "upload", "echo uploads");
        step(&home, "switch-over", "echo switches");
        let run = |about: &str| -> Finished {
            let done = finish(&mut under(shell, &home, script), "");
            assert_free(&home, &format!("{shell:?} {about}"));
            done
        };
        let done = run("to its end");
        assert_eq!(
            (done.code, &*done.stdout),
            (0, "uploads\nswitches\n"),
            "{done:?}"
        );
        step(&home, "upload", "exit 9");
        assert_eq!(run("after a step that failed").code, 9);

        // A lock of somebody else stays, and so does the lock of a ticket from outside.
        let mut theirs = home.hold("deploy", &[], "exec sleep 60");
        let short = script.replace("--wait 1m", "--wait 0");
        let outer = home.run(["acquire", "outer", "--ttl", "1m"]);
        let mut busy = under(shell, &home, &short);
        let busy = finish(busy.env("DISTLOCK_TICKET", outer.stdout.trim()), "");
        assert_eq!(busy.code, 75, "{busy:?}");
        assert!(is_held(&home), "{shell:?}");
        assert_eq!(home.inspect("outer")["state"], "held", "{shell:?}");
        theirs.signal(Signal::TERM).unwrap();
        theirs.wait(SOON).unwrap();
    }
}

#[test]
fn the_ticket_script_frees_its_lock_after_a_signal() {
    let script = script("./upload");
    for shell in SHELLS {
        for (signal, code) in ENDS {
            let home = Home::new();
            let about = format!("{shell:?} {signal:?}");
            step(&home, "switch-over", "echo switches");

            // The whole group gets the signal, as from a terminal.
            step(&home, "upload", "echo uploads; exec sleep 60");
            let mut all = Process::spawn(&mut under(shell, &home, script)).unwrap();
            all.wait_for_line(SOON, |line| line == "uploads").unwrap();
            assert!(is_held(&home), "{about}");
            all.signal_group(signal).unwrap();
            let status = all.wait(SOON).unwrap();
            assert_eq!(status.code(), Some(code), "{about}: {}", all.output());
            assert_free(&home, &about);

            // The shell alone gets the signal. The lock is held as long as the step runs.
            step(
                &home,
                "upload",
                "echo uploads; while ! [ -e go ]; do sleep 0.01; done",
            );
            let mut alone = Process::spawn(&mut under(shell, &home, script)).unwrap();
            alone.wait_for_line(SOON, |line| line == "uploads").unwrap();
            alone.signal(signal).unwrap();
            assert!(is_held(&home), "{about}");
            home.write("go", "");
            let status = alone.wait(SOON).unwrap();
            assert_eq!(status.code(), Some(code), "{about}: {}", alone.output());
            assert!(!alone.output().contains("switches"), "{about}");
            assert_free(&home, &about);

            // The script still waits for the lock, and must not get it afterwards.
            let mut theirs = home.hold("deploy", &[], "exec sleep 60");
            let mut waits = Process::spawn(&mut under(shell, &home, script)).unwrap();
            let waiting = "UPDATE distributed_queue SET joined_at = joined_at";
            eventually("the script waits", SOON, || home.sql(waiting) == 1).unwrap();
            waits.signal_group(signal).unwrap();
            let status = waits.wait(SOON).unwrap();
            assert_eq!(status.code(), Some(code), "{about}: {}", waits.output());
            theirs.signal(Signal::TERM).unwrap();
            theirs.wait(SOON).unwrap();
            assert_free(&home, &about);
        }
    }
}

#[test]
fn the_script_that_finds_old_locks_names_them() {
    let script = script("jq");
    let home = Home::new();
    for name in ["old", "new"] {
        let taken = home.run(["acquire", name, "--ttl", "1h", "--holder", "them"]);
        assert_eq!(taken.code, 0, "{taken:?}");
    }
    // The store writes the moment of the grant in microseconds since 1970.
    let aged = home.sql(
        "UPDATE distributed_lock SET acquired_at = acquired_at - 7200000000 \
         WHERE lock_name = 'old'",
    );
    assert_eq!(aged, 1);
    for shell in SHELLS {
        let done = finish(&mut under(shell, &home, script), "");
        assert_eq!(
            (done.code, &*done.stdout),
            (0, "old them\n"),
            "{shell:?}: {done:?}"
        );
    }
}
