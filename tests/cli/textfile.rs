//! `--metrics-textfile`: the last run of a job as a file for Prometheus' node exporter.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use distlock_harness::{Process, Signal, eventually};

use crate::support::{Finished, Home, SOON, finish, run_through};

/// The values of a file by the last word of their name, without labels. Checks the file as
/// Prometheus does.
fn read(path: &Path, labels: &str) -> BTreeMap<String, f64> {
    let text = fs::read_to_string(path).unwrap();
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool (Debian: apt-get install prometheus): {error}"));
    let mut input = check.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let checked = check.wait_with_output().unwrap();
    assert!(checked.status.success(), "{checked:?}\n{text}");
    // It warns by its output alone.
    assert_eq!(
        (&*checked.stdout, &*checked.stderr),
        (&b""[..], &b""[..]),
        "{checked:?}\n{text}"
    );
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let values = series.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let name = name.strip_prefix("distlock_job_").unwrap();
        let name = name
            .strip_suffix(labels)
            .unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), value.parse().unwrap())
    });
    values.collect()
}

fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

/// The file of a test, and the option that names it.
fn job(home: &Home) -> (PathBuf, [String; 2]) {
    fs::create_dir(home.path("metrics")).unwrap();
    let path = home.path("metrics/job.prom");
    let option = [
        "--metrics-textfile".to_owned(),
        path.to_str().unwrap().to_owned(),
    ];
    (path, option)
}

/// `distlock COMMAND NAME OPTION ARGS -- sh -c SCRIPT`
fn line<'a>(
    command: &'a str,
    name: &'a str,
    [flag, path]: &'a [String; 2],
    args: &[&'a str],
    script: &'a str,
) -> Vec<&'a str> {
    let mut words = vec![command, name, flag, path];
    words.extend(args);
    words.extend(["--", "sh", "-c", script]);
    words
}

#[test]
fn a_run_tells_its_start_and_its_end_and_keeps_the_last_success() {
    let home = Home::new();
    let (path, option) = job(&home);
    let name = "a \"job\" \\ 1";
    let labels = r#"{command="run",name="a \"job\" \\ 1"}"#;
    let (during, before) = (home.path("during.prom"), now());
    let script = format!("sleep 0.3; cp {} {}", path.display(), during.display());
    // The collector is another user, so a strict umask must not matter.
    let call = home.distlock(line("run", name, &option, &[], &script));
    let mut call = run_through("sh", ["-c", "umask 077; exec \"$@\"", "sh"], &call);
    call.current_dir(home.path("."));
    let done = finish(&mut call, "");
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o644
    );
    // Nothing is left beside it.
    assert_eq!(fs::read_dir(home.path("metrics")).unwrap().count(), 1);

    let running = read(&during, labels);
    let start = running["last_start_timestamp_seconds"];
    assert!(before - 0.01 <= start && start <= now(), "{running:?}");
    assert_eq!((running["held"], running.len()), (1.0, 2), "{running:?}");

    let ended = read(&path, labels);
    assert_eq!((ended["held"], ended["exit_code"]), (0.0, 0.0), "{ended:?}");
    assert!(ended["duration_seconds"] >= 0.3, "{ended:?}");
    let success = ended["last_success_timestamp_seconds"];
    assert!(success >= start + 0.29 && success <= now(), "{ended:?}");
    assert!(
        !ended.contains_key("last_loss_timestamp_seconds"),
        "{ended:?}"
    );

    let failed = home.run(line("run", name, &option, &[], "exit 5"));
    assert_eq!(failed.code, 5, "{failed:?}");
    let failed = read(&path, labels);
    assert_eq!(failed["exit_code"], 5.0);
    assert_eq!(failed["last_success_timestamp_seconds"], success);
    assert!(failed["last_start_timestamp_seconds"] > start, "{failed:?}");
}

#[test]
fn a_lost_lock_and_a_busy_one_are_told() {
    let home = Home::new();
    let (path, option) = job(&home);
    let labels = r#"{command="run",name="job"}"#;
    let args = ["--ttl", "2s"];
    let mut call = home.distlock(line("run", "job", &option, &args, "echo ready; sleep 60"));
    let mut run = Process::spawn(&mut call).unwrap();
    run.wait_for_line(SOON, |line| line == "ready").unwrap();

    let busy = home.run(line("run", "job", &option, &["-n"], "exit 9"));
    assert_eq!(busy.code, 75, "{busy:?}");
    let told = read(&path, labels);
    // The first run still holds it.
    assert_eq!((told["exit_code"], told["held"]), (75.0, 1.0), "{told:?}");

    let token = home.inspect("job")["token"].to_string();
    let forced = home.run(["force-release", "job", "--token", &token]);
    assert_eq!(forced.code, 0, "{forced:?}");
    assert_eq!(run.wait(SOON).unwrap().code(), Some(76), "{}", run.output());
    let told = read(&path, labels);
    assert_eq!((told["exit_code"], told["held"]), (76.0, 0.0), "{told:?}");
    let loss = told["last_loss_timestamp_seconds"];
    assert!(
        loss > told["last_start_timestamp_seconds"] && loss <= now(),
        "{told:?}"
    );
    assert!(
        !told.contains_key("last_success_timestamp_seconds"),
        "{told:?}"
    );

    // A command with this exit code of its own has lost nothing.
    let own = home.run(line("run", "other", &option, &[], "exit 76"));
    assert_eq!(own.code, 76, "{own:?}");
    let told = read(&path, r#"{command="run",name="other"}"#);
    assert_eq!(told["exit_code"], 76.0, "{told:?}");
    assert!(
        !told.contains_key("last_loss_timestamp_seconds"),
        "{told:?}"
    );
}

#[test]
fn a_job_that_is_not_due_changes_nothing() {
    let home = Home::new();
    let (path, option) = job(&home);
    let every = ["--every", "1h", "--every-exit-code", "3"];
    let run = || home.run(line("run", "job", &option, &every, "exit 0"));
    assert_eq!(run().code, 0);
    let before = fs::read(&path).unwrap();
    assert_eq!(run().code, 3);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_file_that_cannot_be_written_is_a_warning() {
    let home = Home::new();
    let missing = home.path("missing/job.prom");
    let option = [
        "--metrics-textfile".to_owned(),
        missing.to_str().unwrap().to_owned(),
    ];
    let done = home.run(line("run", "job", &option, &[], "echo ran; exit 4"));
    assert_eq!((done.code, &*done.stdout), (4, "ran\n"), "{done:?}");
    let says = format!(
        "warning: the metrics were not written to {}",
        missing.display()
    );
    assert!(done.stderr.contains(&says), "{done:?}");

    // Nobody opens this pipe for writing, so the read of the old values hangs.
    let pipe = home.path("pipe.prom");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let option = [
        "--metrics-textfile".to_owned(),
        pipe.to_str().unwrap().to_owned(),
    ];
    let done = home.run(line("run", "job", &option, &[], "echo ran; exit 4"));
    assert_eq!((done.code, &*done.stdout), (4, "ran\n"), "{done:?}");
    assert!(
        done.stderr.contains("has not answered after 1s"),
        "{done:?}"
    );

    let text = ["--metrics-textfile".to_owned(), "job.txt".to_owned()];
    let refused = home.run(line("run", "job", &text, &[], "echo ran"));
    refused.assert_failed(64, "only files whose names end in .prom");
}

#[test]
fn each_term_of_an_election_is_told() {
    let home = Home::new();
    let (path, option) = job(&home);
    let labels = r#"{command="elect",name="scheduler"}"#;
    let (began, end) = (home.path("began"), home.path("end"));
    let script = format!(
        "echo leads >> {}; while ! [ -e {} ]; do sleep 0.1; done; exit 3",
        began.display(),
        end.display()
    );
    let mut call = home.distlock(line("elect", "scheduler", &option, &[], &script));
    let mut candidate = Process::spawn(&mut call).unwrap();
    eventually("it leads", SOON, || began.exists()).unwrap();
    let leads = read(&path, labels);
    assert_eq!((leads["held"], leads.len()), (1.0, 2), "{leads:?}");
    fs::write(&end, "").unwrap();
    eventually("the term has ended", SOON, || {
        read(&path, labels)["held"] == 0.0
    })
    .unwrap();
    let ended = read(&path, labels);
    assert_eq!(ended["exit_code"], 3.0, "{ended:?}");
    assert!(ended["duration_seconds"] > 0.0, "{ended:?}");
    fs::remove_file(&end).unwrap();
    eventually("it leads again", SOON, || {
        read(&path, labels)["held"] == 1.0
    })
    .unwrap();
    let token = home.inspect("election/scheduler")["token"].to_string();
    home.run(["force-release", "election/scheduler", "--token", &token]);
    eventually("the loss is told", SOON, || {
        read(&path, labels).contains_key("last_loss_timestamp_seconds")
    })
    .unwrap();
    eventually("it leads again", SOON, || {
        read(&path, labels)["held"] == 1.0
    })
    .unwrap();
    candidate.signal(Signal::TERM).unwrap();
    assert_eq!(candidate.wait(SOON).unwrap().code(), Some(143));
    let ended = read(&path, labels);
    assert_eq!(
        (ended["exit_code"], ended["held"]),
        (143.0, 0.0),
        "{ended:?}"
    );
}

#[test]
fn a_fence_tells_whom_it_let_through_and_whom_it_refused() {
    let home = Home::new();
    let (path, option) = job(&home);
    let labels = r#"{command="fence",name="backup"}"#;
    let fence = |token, script| -> Finished {
        home.run(line(
            "fence",
            "backup",
            &option,
            &["--token", token],
            script,
        ))
    };
    assert_eq!(fence("41", "exit 5").code, 5);
    let passed = read(&path, labels);
    assert_eq!((passed["exit_code"], passed.len()), (0.0, 2), "{passed:?}");
    let refused = fence("40", "echo ran");
    refused.assert_failed(76, "older than 41");
    let told = read(&path, labels);
    let start = told["last_start_timestamp_seconds"];
    assert_eq!(told["exit_code"], 76.0, "{told:?}");
    assert!(told["last_loss_timestamp_seconds"] > start, "{told:?}");
    assert_eq!(start, passed["last_start_timestamp_seconds"]);
    assert_eq!(told.len(), 3, "{told:?}");
}

#[test]
fn the_page_lists_every_metric_of_a_file() {
    const PAGE: &str = include_str!("../../docs/metrics.md");
    let rows = PAGE
        .lines()
        .filter_map(|it| it.strip_prefix("| `distlock_job_"));
    let listed: BTreeSet<_> = rows.filter_map(|row| row.split('`').next()).collect();

    let home = Home::new();
    let (path, option) = job(&home);
    assert_eq!(home.run(line("run", "job", &option, &[], ":")).code, 0);
    let mut told = read(&path, r#"{command="run",name="job"}"#);
    for token in ["2", "1"] {
        home.run(line("fence", "job", &option, &["--token", token], ":"));
    }
    told.extend(read(&path, r#"{command="fence",name="job"}"#));
    let told: BTreeSet<_> = told.keys().map(String::as_str).collect();
    assert_eq!(told, listed);
}
