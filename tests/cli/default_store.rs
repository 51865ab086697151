//! The store that is used without a configured backend, and the store that the users of a host
//! share.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::Path,
    process::Command,
};

use crate::support::{Home, SOON, finish};
use distlock_harness::{Process, Signal};

/// An id of a user and a group that own no file of this host.
const OTHER_USER: u32 = 54_321;
const GROUP: u32 = 54_322;

#[test]
fn the_first_use_prints_the_store_and_that_other_users_have_others() {
    let home = Home::new();
    let first = finish(&mut home.bare(["list"]), "");
    let own = home.path(".local/state/distlock/distlock.db");
    for part in [own.to_str().unwrap(), "root's cron", "--system"] {
        assert!(first.stderr.contains(part), "{first:?}");
    }
    let again = finish(&mut home.bare(["list"]), "");
    assert_eq!(
        (again.code, &*again.stderr),
        (0, "distlock: no lock is held\n")
    );
    // With a named store there is no notice.
    let named = home.run(["list"]);
    assert!(!named.stderr.contains("--system"), "{named:?}");
}

#[test]
fn a_configuration_file_in_the_working_folder_is_named_and_not_read() {
    let home = Home::new();
    assert_eq!(finish(&mut home.bare(["list"]), "").code, 0);
    let file = home.write("distlock.toml", "[backend]\nurl = \"memory:\"\n");
    for line in [
        &["list"][..],
        &["run", "job", "--every", "1h", "--", "true"],
    ] {
        let told = finish(&mut home.bare(line), "");
        assert_eq!(told.code, if line.len() > 1 { 78 } else { 0 }, "{told:?}");
        let hint = "distlock.toml in this folder is not read without --config distlock.toml";
        assert!(told.stderr.contains(hint), "{told:?}");
    }
    let named = finish(
        &mut home.bare(["list", "--config", file.to_str().unwrap()]),
        "",
    );
    assert!(!named.stderr.contains("is not read"), "{named:?}");
}

/// With a store of each host's own, every host would run the job, and every candidate would lead.
#[test]
fn a_command_that_chooses_one_of_several_hosts_needs_a_named_store() {
    let home = Home::new();
    let every = ["run", "job", "--every", "1h", "--", "echo", "ran"];
    let elect = ["elect", "job", "--", "echo", "ran"];
    for line in [&every[..], &elect] {
        // A file that configures something else names no store.
        let file = home.write("other.toml", "[gateway]\n");
        let file = file.to_str().unwrap();
        for line in [line, &[&["--config", file], line].concat()] {
            let refused = finish(&mut home.bare(line), "");
            refused.assert_failed(78, "no store is named");
            for way in ["--backend", "DISTLOCK_BACKEND", "--system", "--user"] {
                assert!(refused.stderr.contains(way), "{refused:?}");
            }
        }
    }
    assert!(!home.path(".local").exists(), "the refused store was made");

    // A user who means the own store of this host names it.
    let own = |args: &[&str]| finish(&mut home.bare([args, &["--user"][..]].concat()), "");
    let ran = finish(&mut home.bare([&["--user"], &every[..]].concat()), "");
    assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (0, "ran\n", ""));
    let mut leads = home.bare([
        "--user",
        "elect",
        "job",
        "--",
        "sh",
        "-c",
        "echo leads; sleep 60",
    ]);
    let mut leads = Process::spawn(&mut leads).unwrap();
    leads.wait_for_line(SOON, |line| line == "leads").unwrap();
    let seen = own(&["inspect", "election/job", "--json"]);
    assert_eq!(seen.json()["state"], "held", "{seen:?}");
    leads.signal(Signal::TERM).unwrap();
    leads.wait(SOON).unwrap();
    own(&["list", "--system"]).assert_failed(64, "cannot be used with");
}

#[test]
fn a_lock_of_the_default_store_is_announced_each_time_unless_a_terminal_shows_it() {
    let home = Home::new();
    let once = |line: &[&str]| {
        let done = finish(&mut home.bare(line), "");
        assert_eq!(done.code, 0, "{done:?}");
        done
    };
    for line in [
        &["run", "job", "--", "true"][..],
        &["acquire", "ticket", "--ttl", "1s"],
    ] {
        for _ in 0..2 {
            let done = once(line);
            let lines: Vec<_> = done.stderr.lines().collect();
            let [notice] = lines[..] else {
                panic!("not one line: {done:?}");
            };
            for part in ["no store is named", "other hosts", "--backend", "--user"] {
                assert!(notice.contains(part), "{done:?}");
            }
            let named = once(&[&["--user"], line].concat());
            assert_eq!(named.stderr, "", "{named:?}");
        }
    }
}

#[test]
fn a_missing_folder_of_the_shared_store_is_78_with_the_command_that_makes_it() {
    let home = Home::new();
    let missing = home.path("shared");
    let mut list = home.bare(["list", "--system"]);
    let done = finish(list.env("DISTLOCK_SYSTEM_FOLDER", &missing), "");
    let makes = format!("`sudo install -d -m 2770 -g GROUP {}`", missing.display());
    done.assert_failed(78, &makes);
    let both = home.run(["list", "--system", "--backend", "memory:"]);
    both.assert_failed(64, "cannot be used with");
}

/// A call of the tool as another user. Only root can become another user. Without root the user
/// stays the same.
fn other_user(home: &Home, shared: &Path, args: &[&str]) -> Command {
    let tool = home.path("distlock");
    if !tool.exists() {
        fs::copy(env!("CARGO_BIN_EXE_distlock"), &tool).unwrap();
    }
    let mut command = Command::new(tool);
    command.args(args).env_clear().env("HOME", "/nonexistent");
    command
        .env("DISTLOCK_SYSTEM_FOLDER", shared)
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.uid(OTHER_USER).gid(GROUP);
    }
    command
}

#[test]
fn users_of_one_host_exclude_each_other_in_the_shared_store() {
    let home = Home::new();
    fs::set_permissions(home.path("."), Permissions::from_mode(0o711)).unwrap();
    let shared = home.path("shared");
    fs::create_dir(&shared).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&shared, None, Some(GROUP)).unwrap();
    }
    fs::set_permissions(&shared, Permissions::from_mode(0o2770)).unwrap();
    // The umask of the first user must not make the store unwritable for the group.
    let script = r#"umask 077; exec "$0" run job --system -- sh -c 'echo ready; exec sleep 60'"#;
    let mut first = Command::new("sh");
    first.args(["-c", script, env!("CARGO_BIN_EXE_distlock")]);
    first.env("HOME", home.path("."));
    first.env("DISTLOCK_SYSTEM_FOLDER", &shared);
    let mut first = Process::spawn(&mut first).unwrap();
    first.wait_for_line(SOON, |line| line == "ready").unwrap();
    for file in ["distlock.db", "distlock.db-wal", "distlock.db-shm"] {
        let file = fs::metadata(shared.join(file)).unwrap();
        assert_eq!(file.mode() & 0o777, 0o660);
        assert_eq!(file.gid(), fs::metadata(&shared).unwrap().gid());
    }
    let mut second = other_user(
        &home,
        &shared,
        &["run", "job", "--system", "-n", "--", "true"],
    );
    let busy = finish(&mut second, "");
    busy.assert_failed(75, "distlock inspect job --system");
    first.signal(Signal::TERM).unwrap();
    first.wait(SOON).unwrap();
    let mine = ["run", "mine", "--system", "--", "true"];
    let done = finish(&mut other_user(&home, &shared, &mine), "");
    assert_eq!((done.code, &*done.stderr), (0, ""));
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    let warned = finish(&mut other_user(&home, &shared, &mine), "");
    assert_eq!(warned.code, 0, "{warned:?}");
    assert!(
        warned.stderr.contains("every user can replace the store"),
        "{warned:?}"
    );
}
