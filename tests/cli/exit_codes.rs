//! Tests of the documented exit codes, each in the simplest case that gives it.

use crate::support::{Home, finish};

#[test]
fn the_exit_code_of_the_command_is_returned() {
    let home = Home::new();
    for code in [0, 1, 7, 64, 75, 76, 255] {
        let done = home.run(["run", "job", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(done.code, code, "{done:?}");
    }
    assert_eq!(home.inspect("job")["state"], "free");
}

#[test]
fn a_command_that_a_signal_ended_gives_128_plus_its_number() {
    let home = Home::new();
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("INT", 130)] {
        let done = home.run([
            "run",
            "job",
            "--",
            "sh",
            "-c",
            &format!("kill -{signal} $$"),
        ]);
        assert_eq!(done.code, code, "{done:?}");
    }
}

#[test]
fn a_command_that_cannot_be_started_gives_the_code_of_a_shell() {
    let home = Home::new();
    let not_executable = home.write("plain-file", "no program");
    home.run(["run", "job", "--", "no-such-program-anywhere"])
        .assert_failed(127, "cannot run no-such-program-anywhere");
    home.run(["run", "job", "--", not_executable.to_str().unwrap()])
        .assert_failed(126, "Permission denied");
    assert_eq!(home.inspect("job")["state"], "free");
}

#[test]
fn a_script_that_names_no_shell_runs_in_sh() {
    use std::os::unix::fs::PermissionsExt as _;

    let home = Home::new();
    let script = home.write("nightly", "echo \"$1 under $DISTLOCK_NAME\"; exit 9");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    // A folder on the path does not count as the program. A file that may not be executed does not
    // count either.
    std::fs::create_dir(home.path("first")).unwrap();
    home.write("first/nightly", "echo not this one");
    let (first, then) = (home.path("first"), home.path("."));
    let path = format!("{}:{}:/usr/bin:/bin", first.display(), then.display());
    for program in [script.to_str().unwrap(), "nightly"] {
        let mut run = home.distlock(["run", "job", "--", program, "backup"]);
        let done = finish(run.env("PATH", &path), "");
        assert_eq!(
            (done.code, done.stdout.as_str()),
            (9, "backup under job\n"),
            "{done:?}"
        );
    }
}

#[test]
fn no_arguments_print_the_help_with_64() {
    let done = Home::new().run([] as [&str; 0]);
    assert_eq!(done.code, 64, "{done:?}");
    assert!(done.stderr.starts_with("One distributed lock"), "{done:?}");
}

#[test]
fn a_misspelled_variable_is_warned_about() {
    let home = Home::new();
    let done = finish(home.distlock(["list"]).env("DISTLOCK_BAKEND", "x"), "");
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.stderr.contains("did you mean DISTLOCK_BACKEND?"),
        "{done:?}"
    );
}

#[test]
fn bad_usage_is_64() {
    let home = Home::new();
    home.run(["run"]).assert_failed(64, "required");
    home.run(["frobnicate"]).assert_failed(64, "frobnicate");
    home.run(["list", "--frobnicate"])
        .assert_failed(64, "--frobnicate");
}

#[test]
fn a_ttl_that_is_too_long_is_quoted_as_it_was_written() {
    let home = Home::new();
    home.run(["acquire", "job", "--ttl", "25h"])
        .assert_failed(64, "ttl of 25h is outside 1 ms to 24 h");
}

#[test]
fn a_file_that_can_never_be_a_store_is_78() {
    let home = Home::new();
    let text = home.write("notes.txt", &"this is not a database\n".repeat(100));
    for (path, says) in [
        ("/proc/no/such/folder/x.db", "/proc/no/such/folder"),
        ("/proc", "/proc"),
        (text.to_str().unwrap(), "notes.txt"),
    ] {
        home.run(["--backend", &format!("sqlite:{path}"), "list"])
            .assert_failed(78, says);
    }
    assert_eq!(
        std::fs::read_to_string(text).unwrap(),
        "this is not a database\n".repeat(100)
    );
}

#[test]
fn a_store_file_that_cannot_be_opened_is_69() {
    let home = Home::new();
    // Root may write any file. So the kind of the file must cause the refusal, and not its mode.
    let done = home.run([
        "--backend",
        "sqlite:/proc/version",
        "acquire",
        "job",
        "--ttl",
        "5s",
    ]);
    done.assert_failed(69, "/proc/version: the file cannot be opened");
}

#[test]
fn a_store_that_this_user_may_not_use_is_77() {
    use std::os::unix::{fs::PermissionsExt as _, process::CommandExt as _};

    let home = Home::new();
    let open = |path: std::path::PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    home.run(["list"]);
    open(home.store(), 0o400);
    // Root may read and write everything. So the tool runs as another user, from a folder that
    // everybody may enter.
    let tool = home.path("distlock");
    std::fs::copy(env!("CARGO_BIN_EXE_distlock"), &tool).unwrap();
    open(tool.clone(), 0o755);
    open(home.path("."), 0o755);
    let mut list = std::process::Command::new(&tool);
    list.args(["list", "--backend"])
        .arg(format!("sqlite:{}", home.store().display()))
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        list.uid(65_534);
    }
    finish(&mut list, "").assert_failed(77, "locks.db: cannot be read and written");
}

#[test]
fn busy_is_75_or_the_code_of_the_flag() {
    let home = Home::new();
    let _holder = home.hold("job", &["--holder", "nightly@db1"], "sleep 60");
    for args in [vec!["-n"], vec!["--wait", "0"], vec!["--wait", "200ms"]] {
        let line = [&["run", "job"], args.as_slice(), &["--", "true"]].concat();
        home.run(line).assert_failed(75, "nightly@db1");
    }
    home.run(["run", "job", "-n", "-E", "3", "--", "true"])
        .assert_failed(3, "nightly@db1");
    home.run(["acquire", "job", "--ttl", "5s", "--wait", "0"])
        .assert_failed(75, "nightly@db1");
}

#[test]
fn the_advised_command_finds_the_holder() {
    let home = Home::new();
    let _holder = home.hold("job", &["--holder", "nightly@db1"], "sleep 60");
    // No variable names the store here. Only the flag does.
    let backend = format!("sqlite:{}", home.store().display());
    let advised = format!("`distlock inspect job --backend {backend}`");
    let busy = ["run", "job", "-n", "--backend", &backend, "--", "true"];
    let told = finish(&mut home.bare(busy), "");
    told.assert_failed(
        75,
        &format!("allow more time with `--wait`, look with {advised}"),
    );
    // Users of the tool cannot call the methods of the library.
    assert!(!told.stderr.contains("LockBuilder"), "{told:?}");
    let config = home.write("my store.toml", &format!("[backend]\nurl = {backend:?}"));
    let config = config.to_str().unwrap();
    let advised = format!("`distlock inspect job --config '{config}'`");
    let busy = [
        "acquire", "job", "--ttl", "5s", "--wait", "0", "--config", config,
    ];
    finish(&mut home.bare(busy), "").assert_failed(75, &advised);
}

#[test]
fn a_lost_lock_is_76() {
    let home = Home::new();
    let mut holder = home.hold("job", &["--ttl", "1s"], "sleep 60");
    assert_eq!(
        home.sql("delete from distributed_lock where lock_name = 'job'"),
        1
    );
    let status = holder.wait(crate::support::SOON).unwrap();
    assert_eq!(status.code(), Some(76), "{}", holder.output());
}

#[test]
fn a_store_that_does_not_answer_is_69() {
    let home = Home::new();
    assert_eq!(home.run(["list"]).code, 0);
    let _busy = crate::support::BlockingWriter::new(&home);
    let done = home.run(["acquire", "job", "--ttl", "5s", "--wait", "1s"]);
    assert_eq!(done.code, 69, "{done:?}");
}

#[test]
fn bad_configuration_is_78() {
    let home = Home::new();
    home.run(["--backend", "carrier-pigeon:coop", "list"])
        .assert_failed(78, "unknown backend scheme");
    home.run(["--config", "/no/such/file.toml", "list"])
        .assert_failed(78, "/no/such/file.toml");
}

#[test]
fn help_and_version_go_to_standard_output_with_0() {
    let home = Home::new();
    for args in [["--help"], ["--version"]] {
        let done = finish(&mut home.bare(args), "");
        assert_eq!(done.code, 0, "{done:?}");
        assert!(done.stdout.contains("distlock"), "{done:?}");
        assert_eq!(done.stderr, "");
    }
}

#[test]
fn a_reader_that_closes_early_is_no_failure() {
    let home = Home::new();
    let tool = env!("CARGO_BIN_EXE_distlock");
    let mut shell = std::process::Command::new("sh");
    shell
        .args([
            "-c",
            &format!("{tool} man run | head -c 1 >/dev/null; {tool} --help | head -c 1 >/dev/null"),
        ])
        .current_dir(home.path("."));
    let done = finish(&mut shell, "");
    assert_eq!(done.stderr, "", "{done:?}");
}

#[test]
fn a_result_that_cannot_be_written_is_69() {
    let home = Home::new();
    let full = || std::fs::File::create("/dev/full").unwrap();
    for line in [
        vec!["inspect", "job"],
        vec!["man"],
        vec!["--version"],
        vec!["completions", "bash"],
    ] {
        let done = home.distlock(line).stdout(full()).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(69), "{said}");
        assert!(said.contains("cannot write to standard output: "), "{said}");
    }
}

#[test]
fn a_ticket_that_cannot_be_printed_is_69_and_its_lock_is_released() {
    let home = Home::new();
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    let full = std::fs::File::create("/dev/full").unwrap();
    for (stdout, says) in [
        (closed.into(), "nobody reads standard output"),
        (
            std::process::Stdio::from(full),
            "cannot write to standard output",
        ),
    ] {
        let mut acquire = home.distlock(["acquire", "job", "--ttl", "1m"]);
        let done = acquire.stdout(stdout).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(69), "{said}");
        assert!(said.contains(says), "{said}");
        assert!(said.contains("the lock was released again"), "{said}");
        assert_eq!(home.inspect("job")["state"], "free");
    }
}
