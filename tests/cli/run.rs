//! `distlock run`: exclusion, environment, signals, and the end of a command whose lock is lost.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use distlock_harness::{Process, Signal, distlock_binary, eventually};

use crate::support::{
    BlockingWriter, Finished, Home, SOON, UnreadPipe, finish, read_whole_lines, run_through,
    state_of, wait_until_blocked_on, wait_until_gone,
};

/// The process id that a script printed as `NAME ID`.
pub(crate) fn printed_id(process: &Process, name: &str) -> u32 {
    let line = process
        .wait_for_line(SOON, |line| line.starts_with(name))
        .unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn two_runs_of_one_name_never_overlap() {
    let home = Home::new();
    let log = home.path("log");
    let script = format!("echo in >> {0}; sleep 0.3; echo out >> {0}", log.display());
    let mut runs: Vec<_> = (0..3)
        .map(|_| home.start(["run", "job", "--", "sh", "-c", &script]))
        .collect();
    for run in &mut runs {
        assert!(run.wait(SOON).unwrap().success(), "{}", run.output());
    }
    assert_eq!(read_whole_lines(&log), "in\nout\n".repeat(3));
}

#[test]
fn the_command_gets_name_token_and_holder_and_no_credentials() {
    let home = Home::new();
    let script = "echo $DISTLOCK_NAME $DISTLOCK_TOKEN $DISTLOCK_HOLDER; env | grep -c ^DISTLOCK_";
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let mut run = home.distlock(["run", "a job", "--holder", "me", "--", "sh", "-c", script]);
        run.env("DISTLOCK_TICKET", "secret")
            .env("DISTLOCK_GATEWAY_TOKEN_KEY", "secret");
        let done = finish(&mut run, "");
        assert_eq!(done.code, 0, "{done:?}");
        let lines: Vec<_> = done.stdout.lines().collect();
        let words: Vec<_> = lines[0].split(' ').collect();
        assert_eq!((words[0], words[1], words[3]), ("a", "job", "me"));
        assert_eq!(
            lines[1], "3",
            "only the three documented variables: {done:?}"
        );
        tokens.push(words[2].parse::<u64>().unwrap());
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

#[test]
fn a_name_may_start_with_a_dash() {
    let home = Home::new();
    for options in [&["run"][..], &["run", "-n"]] {
        let script = ["--", "-x", "--", "sh", "-c", "printf %s \"$DISTLOCK_NAME\""];
        let done = home.run(options.iter().chain(&script));
        assert_eq!((done.code, &*done.stdout), (0, "-x"), "{done:?}");
    }
    // After a name before the first `--`, all further words belong to the command.
    let done = home.run(["run", "job", "--", "echo", "a", "--", "b"]);
    assert_eq!((done.code, &*done.stdout), (0, "a -- b\n"), "{done:?}");
    for line in [&["run", "--", "true"][..], &["run", "--", "a", "--"]] {
        home.run(line).assert_failed(64, "NAME is missing");
    }
    // The error advises the form that works.
    home.run(["run", "-x", "--", "true"])
        .assert_failed(64, "use '-- -x'");
}

/// The loss happens between two renewals, so nothing notices it while the command runs.
#[test]
fn a_lost_lock_is_76_even_if_the_command_succeeded() {
    let home = Home::new();
    let tool = distlock_binary().unwrap();
    let script = format!(
        "{} --backend sqlite:{} force-release job --token $DISTLOCK_TOKEN",
        tool.display(),
        home.store().display()
    );
    let mut run = home.distlock(["run", "job", "--ttl", "1h", "--", "sh", "-c", &script]);
    let done = finish(&mut run, "");
    assert_eq!(done.code, 76, "{done:?}");
    assert!(
        done.stderr.contains("was lost while the command ran"),
        "{done:?}"
    );
}

#[test]
fn signals_reach_the_command_and_its_code_is_kept() {
    let home = Home::new();
    for (signal, name, code) in [
        (Signal::TERM, "TERM", 11),
        (Signal::INT, "INT", 12),
        (Signal::HUP, "HUP", 13),
    ] {
        // The sleep runs in the background, because a shell runs its traps only between commands.
        let script = format!("trap 'exit {code}' {name}; echo trapped; sleep 60 & wait");
        let mut run = home.hold("job", &[], &script);
        run.wait_for_line(SOON, |line| line == "trapped").unwrap();
        run.signal(signal).unwrap();
        assert_eq!(
            run.wait(SOON).unwrap().code(),
            Some(code),
            "{}",
            run.output()
        );
        assert_eq!(home.inspect("job")["state"], "free");
    }
}

/// Without a handler, each of these signals would end the tool and leave the command running.
#[test]
fn signals_of_alarms_and_limits_reach_the_command_and_do_not_end_the_tool() {
    let home = Home::new();
    let passed_on = [
        Signal::ALARM,
        Signal::VTALARM,
        Signal::PROF,
        Signal::IO,
        Signal::POWER,
        Signal::SYS,
        Signal::STKFLT,
    ];
    let passed_on = passed_on.map(|signal| (signal.as_raw(), signal.as_raw()));
    // XCPU, and three real-time signals: the first, one from the middle and the last.
    let ends = [Signal::XCPU.as_raw(), 34, 50, 64].map(|sent| (sent, Signal::TERM.as_raw()));
    for (sent, received) in passed_on.into_iter().chain(ends) {
        let script = format!("trap 'exit 11' {received}; echo trapped; sleep 60 & wait");
        let mut run = home.hold("job", &[], &script);
        run.wait_for_line(SOON, |line| line == "trapped").unwrap();
        let kill = format!("kill -{sent} {}", run.id());
        let sent_it = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(sent_it.success(), "{kill}");
        let status = run.wait(SOON).unwrap();
        assert_eq!(status.code(), Some(11), "{sent}: {}", run.output());
        assert_eq!(home.inspect("job")["state"], "free");
    }
}

#[test]
fn the_limit_of_the_file_size_gives_an_error_and_does_not_kill_the_tool() {
    let home = Home::new();
    let limited = |script: &str, tool: &Command| {
        let script = format!("ulimit -f 0; {script}");
        finish(&mut run_through("sh", ["-c", &script, "sh"], tool), "")
    };
    let out = home.path("out");
    let script = format!("exec \"$@\" > {}", out.display());
    let written = limited(&script, &home.distlock(["completions", "bash"]));
    written.assert_failed(69, "cannot write to standard output: File too large");
    let run = home.distlock(["run", "job", "--", "echo", "never"]);
    limited("exec \"$@\"", &run).assert_failed(69, "");
}

/// The command must have the same limits and ignored signals as without this tool.
#[test]
fn the_command_inherits_whether_xfsz_is_ignored() {
    let home = Home::new();
    let shows = ["run", "job", "--", "grep", "SigIgn", "/proc/self/status"];
    let is_ignored = |done: &Finished| {
        let (_, mask) = done.stdout.trim().rsplit_once('\t').unwrap();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (Signal::XFSZ.as_raw() - 1) != 0
    };
    let done = home.run(shows);
    assert!(!is_ignored(&done), "{done:?}");
    let script = "trap '' XFSZ; exec \"$@\"";
    let tool = home.distlock(shows);
    let done = finish(&mut run_through("sh", ["-c", script, "sh"], &tool), "");
    assert!(is_ignored(&done), "{done:?}");
}

#[test]
fn a_stopped_command_can_be_ended() {
    let home = Home::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut run = home.hold("job", &[], "echo shell $$; kill -STOP $$; exit 3");
        let shell = printed_id(&run, "shell");
        eventually("the command is stopped", SOON, || {
            state_of(shell) == Some('T')
        })
        .unwrap();
        run.signal(signal).unwrap();
        let ended = run.wait(SOON).unwrap();
        assert_eq!(ended.code(), Some(code), "{}", run.output());
        assert_eq!(home.inspect("job")["state"], "free");
    }
}

/// In a session of its own, no shell would continue a stopped process.
#[test]
fn control_z_without_a_shell_pauses_only_for_a_moment() {
    let home = Home::new();
    // The command is paused too, and is continued with CONT.
    let script = "trap 'exit 7' CONT; kill -TSTP $PPID; sleep 60 & wait";
    let tool = home.distlock(["run", "job", "--", "sh", "-c", script]);
    let mut run = Process::spawn(&mut run_through("setsid", ["--wait"], &tool)).unwrap();
    assert_eq!(run.wait(SOON).unwrap().code(), Some(7), "{}", run.output());
    assert_eq!(home.inspect("job")["state"], "free");
}

#[test]
fn signals_that_were_ignored_from_the_start_stay_ignored() {
    let home = Home::new();
    let go = home.path("go");
    // `nohup` ignores HUP, and the shell of a script ignores INT and QUIT for background commands.
    // The name of the link is so long that the system cuts it off in the middle of its last
    // character.
    let ignoring = format!(
        "trap '' HUP INT QUIT; ln -s \"$1\" {0}; shift; exec {0} \"$@\"",
        home.path("distlock-exclué").display()
    );
    let script = format!(
        "for s in HUP INT QUIT; do kill -$s $$; done; echo ready; while [ ! -e {} ]; do sleep \
        0.05; done; exit 7",
        go.display()
    );
    let tool = home.distlock(["run", "job", "--", "sh", "-c", &script]);
    let mut run = Process::spawn(&mut run_through("sh", ["-c", &ignoring, "sh"], &tool)).unwrap();
    run.wait_for_line(SOON, |line| line == "ready").unwrap();
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        run.signal(signal).unwrap();
    }
    std::fs::write(go, "").unwrap();
    assert_eq!(run.wait(SOON).unwrap().code(), Some(7), "{}", run.output());
}

#[test]
fn a_signal_while_waiting_ends_the_wait_and_leaves_nothing() {
    let home = Home::new();
    let _holder = home.hold("job", &["--holder", "the holder"], "sleep 60");
    let mut waiter = home.start(["run", "job", "--", "echo", "never"]);
    waiter
        .wait_for_line(SOON, |line| {
            line.contains("waiting for \"job\": held by the holder")
        })
        .unwrap();
    waiter.signal(Signal::TERM).unwrap();
    assert_eq!(
        waiter.wait(SOON).unwrap().code(),
        Some(143),
        "{}",
        waiter.output()
    );
    assert!(!waiter.output().contains("never"));
}

#[test]
fn a_waiting_run_gets_the_lock_when_the_holder_is_done() {
    let home = Home::new();
    let go = home.path("go");
    let wait_for_go = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    let mut holder = home.hold("job", &[], &wait_for_go);
    let mut waiter = home.start(["run", "job", "--", "echo", "my turn"]);
    waiter
        .wait_for_line(SOON, |line| line.contains("held by"))
        .unwrap();
    std::fs::write(go, "").unwrap();
    assert!(holder.wait(SOON).unwrap().success());
    assert!(waiter.wait(SOON).unwrap().success(), "{}", waiter.output());
    waiter
        .wait_for_line(SOON, |line| line == "my turn")
        .unwrap();
}

#[test]
fn a_deleted_row_kills_the_whole_group() {
    let home = Home::new();
    let script = "sleep 300 & echo child $!; trap '' TERM; echo shell $$; wait; wait";
    let mut run = home.hold("job", &["--ttl", "1s"], script);
    let (child, shell) = (printed_id(&run, "child"), printed_id(&run, "shell"));
    assert_eq!(
        home.sql("delete from distributed_lock where lock_name = 'job'"),
        1
    );
    assert_eq!(run.wait(SOON).unwrap().code(), Some(76), "{}", run.output());
    wait_until_gone(child);
    wait_until_gone(shell);
    assert!(
        run.output()
            .contains("\"job\" was lost while the command ran"),
        "{}",
        run.output()
    );
}

#[test]
fn a_forced_release_kills_the_group_and_the_next_one_gets_a_higher_token() {
    let home = Home::new();
    let mut run = home.hold("job", &["--ttl", "1s"], "sleep 300");
    let token = home.inspect("job")["token"].as_u64().unwrap();
    let forced = home.run(["force-release", "job", "--token", &token.to_string()]);
    assert_eq!(forced.code, 0, "{forced:?}");
    assert_eq!(run.wait(SOON).unwrap().code(), Some(76), "{}", run.output());
    let next = home.run(["run", "job", "-n", "--", "sh", "-c", "echo $DISTLOCK_TOKEN"]);
    assert!(
        next.stdout.trim().parse::<u64>().unwrap() > token,
        "{next:?}"
    );
}

/// The store hangs, because another process holds its write lock. So no renewal succeeds. TERM
/// comes before the deadline, and KILL at the deadline at the latest.
#[test]
fn a_hanging_store_ends_the_command_before_the_lease_expires() {
    let home = Home::new();
    let marks = home.path("marks");
    let script = format!(
        "trap 'date +%s%N >> {}' TERM; echo trapped; while :; do sleep 0.02; done",
        marks.display()
    );
    let ttl = Duration::from_secs(4);
    let mut run = home.hold("job", &["--ttl", "4s", "--kill-after", "1s"], &script);
    run.wait_for_line(SOON, |line| line == "trapped").unwrap();
    let hanging = Instant::now();
    let held = BlockingWriter::new(&home);
    let status = run.wait(SOON).unwrap();
    let took = hanging.elapsed();
    drop(held);
    assert_eq!(status.code(), Some(76), "{}", run.output());
    // The last renewal was sent before the store hung. So the lease ends at the latest one TTL
    // after that moment.
    assert!(took <= ttl + Duration::from_millis(250), "{took:?}");
    assert_eq!(
        read_whole_lines(&marks).lines().count(),
        1,
        "TERM came once, before KILL"
    );
    assert!(run.output().contains("expires in"), "{}", run.output());
}

#[test]
fn a_command_that_cannot_keep_its_lock_is_killed_even_if_nobody_reads_standard_error() {
    let home = Home::new();
    let mut unread = UnreadPipe::new();
    unread.fill();
    // The shell's standard error goes to its standard output, because the shell itself prints a
    // line about its killed child.
    let script = "exec 2>&1; trap 'echo trapped' TERM; echo shell $$; while :; do sleep 0.02; done";
    let run = home.distlock(["run", "job", "--ttl", "2s", "--", "sh", "-c", script]);
    let mut run = Process::spawn(&mut unread.redirect(2, &run)).unwrap();
    let shell = printed_id(&run, "shell");
    let held = BlockingWriter::new(&home);
    run.wait_for_line(SOON, |line| line == "trapped").unwrap();
    wait_until_gone(shell);
    drop(held);
    assert_eq!(run.wait(SOON).unwrap().code(), Some(76), "{}", run.output());
}

#[test]
fn a_waiting_run_handles_signals_and_its_turn_even_if_nobody_reads_standard_error() {
    let home = Home::new();
    let mut unread = UnreadPipe::new();
    unread.fill();
    let go = home.path("go");
    let wait_for_go = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    let mut holder = home.hold("job", &[], &wait_for_go);
    let waiter = || {
        let tool = home.distlock(["run", "job", "--", "echo", "my turn"]);
        let waiter = Process::spawn(&mut unread.redirect(2, &tool)).unwrap();
        wait_until_blocked_on(waiter.id(), 2);
        waiter
    };
    let mut ended = waiter();
    ended.signal(Signal::TERM).unwrap();
    assert_eq!(ended.wait(SOON).unwrap().code(), Some(143));
    let mut waiter = waiter();
    std::fs::write(go, "").unwrap();
    assert!(holder.wait(SOON).unwrap().success());
    assert!(waiter.wait(SOON).unwrap().success());
    assert_eq!(waiter.output(), "my turn");
}

#[test]
fn a_lock_is_renewed_even_if_nobody_reads_the_log() {
    let home = Home::new();
    let mut unread = UnreadPipe::new();
    unread.fill();
    let renewed = home.path("renewed");
    let script = format!(
        "echo ready; while [ ! -e {} ]; do sleep 0.05; done; echo done",
        renewed.display()
    );
    let mut run = home.distlock(["run", "job", "--ttl", "4s", "--", "sh", "-c", &script]);
    run.env("DISTLOCK_LOG", "trace");
    let mut run = Process::spawn(&mut unread.redirect(2, &run)).unwrap();
    run.wait_for_line(SOON, |line| line == "ready").unwrap();
    // Only a renewal makes the remaining time longer.
    let (mut before, mut renewals) = (0, 0);
    eventually("it is renewed again and again", SOON, || {
        let left = home.inspect("job")["expires_in_ms"].as_u64().unwrap_or(0);
        renewals += u32::from(before > 0 && left > before);
        before = left;
        renewals == 3
    })
    .unwrap();
    home.write("renewed", "");
    assert_eq!(run.wait(SOON).unwrap().code(), Some(0), "{}", run.output());
    assert_eq!(run.output(), "ready\ndone");
}

#[test]
fn the_lock_is_released_only_after_the_whole_group_is_gone() {
    let home = Home::new();
    // The shell ends at once and leaves a child that ignores TERM.
    let script = "(trap '' TERM; echo left $(exec sh -c 'echo $PPID'); while :; do sleep 0.05; \
    done) & sleep 0.3; exit 5";
    let mut run = home.hold("job", &["--ttl", "30s", "--kill-after", "1s"], script);
    let left = printed_id(&run, "left");
    // Nobody else gets the lock while the child lives.
    let lives = format!("grep -qs ') [^ZX] ' /proc/{left}/stat");
    let next = home.run(["run", "job", "--", "sh", "-c", &lives]);
    assert_ne!(next.code, 0, "the leftover child still lived: {next:?}");
    assert_eq!(run.wait(SOON).unwrap().code(), Some(5), "{}", run.output());
    wait_until_gone(left);
}

/// The kernel cuts off the name of a process, here in the middle of a character.
#[test]
fn a_leftover_process_is_ended_whatever_its_name() {
    let home = Home::new();
    // The command must start no other process, because the test could take it for this process.
    let left = format!(
        "mkfifo {0}; (printf 'x\\303' > /proc/self/comm; read never < {0}) & echo left $!; \
         while grep -q sh /proc/$!/comm; do sleep 0.05; done; exit 3",
        home.path("fifo").display()
    );
    let mut run = home.hold("job", &[], &left);
    let left = printed_id(&run, "left");
    assert_eq!(run.wait(SOON).unwrap().code(), Some(3), "{}", run.output());
    assert_eq!(state_of(left), None);
}

/// The first process of a container becomes the parent of processes whose parent died.
#[test]
fn adopted_children_are_reaped() {
    let home = Home::new();
    let (go, end) = (home.path("go"), home.path("end"));
    let until = |file: &Path| format!("until [ -e {} ]; do sleep 0.05; done", file.display());
    let tool = home.distlock(["run", "job", "--", "sh", "-c"]);
    let script = format!("({}) & echo adopted $!; exec \"$@\"", until(&go));
    let command = format!("touch {}; {}; exit 7", go.display(), until(&end));
    let mut run = run_through("sh", ["-c", &script, "sh"], &tool);
    let mut run = Process::spawn(run.arg(command)).unwrap();
    let adopted = format!("/proc/{}", printed_id(&run, "adopted"));
    eventually("it is buried", SOON, || {
        go.exists() && !Path::new(&adopted).exists()
    })
    .unwrap();
    std::fs::write(end, "").unwrap();
    assert_eq!(run.wait(SOON).unwrap().code(), Some(7), "{}", run.output());
}

#[test]
fn a_paused_run_pauses_its_command_and_goes_on() {
    let home = Home::new();
    let script = "echo shell $$; i=0; while [ $i -lt 40 ]; do sleep 0.05; i=$((i+1)); done; exit 4";
    let mut run = home.hold("job", &[], script);
    let shell = printed_id(&run, "shell");
    run.signal(Signal::TSTP).unwrap();
    eventually("both are stopped", SOON, || {
        state_of(run.id()) == Some('T') && state_of(shell) == Some('T')
    })
    .unwrap();
    run.signal(Signal::CONT).unwrap();
    assert_eq!(run.wait(SOON).unwrap().code(), Some(4), "{}", run.output());
}

#[test]
fn a_command_is_not_continued_when_the_lease_expired_during_a_pause() {
    let home = Home::new();
    let mut run = home.hold(
        "job",
        &["--ttl", "500ms"],
        "echo shell $$; while :; do sleep 0.05; done",
    );
    let shell = printed_id(&run, "shell");
    run.signal(Signal::TSTP).unwrap();
    eventually("both are stopped", SOON, || {
        state_of(run.id()) == Some('T') && state_of(shell) == Some('T')
    })
    .unwrap();
    let next = home.run(["run", "job", "--", "echo", "taken over"]);
    assert_eq!(next.code, 0, "{next:?}");
    run.signal(Signal::CONT).unwrap();
    assert_eq!(run.wait(SOON).unwrap().code(), Some(76), "{}", run.output());
    wait_until_gone(shell);
}

#[test]
fn a_short_command_keeps_the_lock_for_the_minimum() {
    let home = Home::new();
    let start = Instant::now();
    let done = home.run(["run", "job", "--min-hold", "2s", "--", "true"]);
    assert_eq!(done.code, 0, "{done:?}");
    let again = home.run(["run", "job", "--", "true"]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(
        start.elapsed() >= Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn without_configuration_the_users_own_file_is_used() {
    let home = Home::new();
    let done = finish(&mut home.bare(["run", "job", "--", "true"]), "");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(home.path(".local/state/distlock/distlock.db").is_file());
    let mut elsewhere = home.bare(["run", "job", "--", "true"]);
    elsewhere.env("XDG_STATE_HOME", home.path("state"));
    assert_eq!(finish(&mut elsewhere, "").code, 0);
    assert!(home.path("state/distlock/distlock.db").is_file());
    let file = home.write("file", "");
    let mut nowhere = home.bare(["run", "job", "--", "true"]);
    finish(nowhere.env("XDG_STATE_HOME", file), "").assert_failed(78, "with --backend");
}

#[test]
fn a_nested_call_of_the_tool_warns_that_it_may_use_another_store() {
    let home = Home::new();
    let tool = home
        .bare(["run", "job", "--", "true"])
        .get_program()
        .to_owned();
    let inner = [tool.to_str().unwrap(), "run", "job", "-n", "--", "true"];
    let outer = ["run", "job", "--"].into_iter().chain(inner);
    // No configuration names a store, so both calls use the file of the user. The inner call finds
    // the lock held, and prints the store.
    let done = finish(&mut home.bare(outer.clone()), "");
    assert_eq!(done.code, 75, "{done:?}");
    assert!(
        done.stderr.contains("does not pass its backend on"),
        "{done:?}"
    );
    let store = home.path("store.db");
    let mut elsewhere = home.bare(outer);
    elsewhere.env("DISTLOCK_BACKEND", format!("sqlite:{}", store.display()));
    let done = finish(&mut elsewhere, "");
    assert_eq!(done.code, 0, "{done:?}");
    let own = home.path(".local/state/distlock/distlock.db");
    assert!(done.stderr.contains(own.to_str().unwrap()), "{done:?}");
}

/// Nobody renews the lock any more, so the command gets TERM at once. A process that ignores TERM
/// gets KILL when the lease ends.
#[test]
fn a_command_does_not_outlive_a_killed_tool() {
    let home = Home::new();
    let log = home.path("log");
    for (deaf, ends) in [("", "ended\n"), ("trap '' TERM;", "ended\n")] {
        let script = format!(
            "{deaf} trap 'echo ended >> {0}; exit 0' TERM; {deaf} sh -c 'echo inner $$; while :; \
            do sleep 0.1; done' & echo \
             outer $$; while :; do sleep 0.1; done",
            log.display()
        );
        let run = home.start(["run", "job", "--ttl", "2s", "--", "sh", "-c", &script]);
        let (inner, outer) = (printed_id(&run, "inner"), printed_id(&run, "outer"));
        let began = Instant::now();
        run.signal(Signal::KILL).unwrap();
        wait_until_gone(inner);
        wait_until_gone(outer);
        if deaf.is_empty() {
            assert_eq!(read_whole_lines(&log), ends);
        } else {
            assert!(
                began.elapsed() > Duration::from_millis(200),
                "it was given time"
            );
        }
        // No other process gets the lock before the lease has ended, as after any crash.
        let next = home.run(["run", "job", "--", "true"]);
        assert_eq!(next.code, 0, "{next:?}");
    }
}

/// The stopped supervisor cannot check the deadline, but its watchdog can.
#[test]
fn a_command_does_not_outlive_the_lease_of_a_stopped_tool() {
    let home = Home::new();
    let script = "trap '' TERM; echo outer $$; while :; do sleep 0.1; done";
    let mut run = home.start(["run", "job", "--ttl", "1s", "--", "sh", "-c", script]);
    let outer = printed_id(&run, "outer");
    run.signal(Signal::STOP).unwrap();
    wait_until_gone(outer);
    run.signal(Signal::CONT).unwrap();
    assert_eq!(run.wait(SOON).unwrap().code(), Some(76), "{}", run.output());
}

/// The supervisor dies before it can send the group to the watchdog.
#[test]
fn a_command_does_not_outlive_a_tool_that_was_killed_right_after_the_start() {
    let home = Home::new();
    for round in 0..10 {
        let name = format!("job {round}");
        let script = "echo outer $$; while :; do sleep 0.1; done";
        let run = home.start(["run", &name, "--ttl", "1s", "--", "sh", "-c", script]);
        let outer = printed_id(&run, "outer");
        run.signal(Signal::KILL).unwrap();
        wait_until_gone(outer);
    }
}
