//! A command that changed its user refuses the signals of the tool. The tool says so, and never
//! says that it ended such a command.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use distlock_harness::{Process, Signal, eventually};
use rustix::{
    fs::{StatVfsMountFlags, statvfs},
    process::geteuid,
};
use tempfile::TempDir;

use crate::{
    limited_user::LimitedUser,
    run::printed_id,
    support::{BlockingWriter, Finished, SOON, finish, state_of, wait_until_gone},
};

/// A program that becomes root, and runs until a file exists.
const SOURCE: &str = r#"
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
    if (count != 2 || setgid(0) || setuid(0)) return 9;
    printf("work %d\n", getpid());
    fflush(stdout);
    for (int i = 0; i < 1200 && access(words[1], F_OK); i++) usleep(50000);
    return 0;
}
"#;

/// The tool as a user without privileges, and a set-user-ID program of root.
struct OtherUser {
    user: LimitedUser,
    folder: TempDir,
}

impl OtherUser {
    fn new() -> Self {
        let folder = folder_for_set_user_id();
        fs::write(folder.path().join("work.c"), SOURCE).unwrap();
        let built = Command::new("cc")
            .args(["-o", "work", "work.c"])
            .current_dir(folder.path())
            .status()
            .unwrap();
        assert!(built.success());
        let path = |name| folder.path().join(name).to_str().unwrap().to_owned();
        as_root(&["chown", "root:root", &path("work")]);
        as_root(&["chmod", "4755", &path("work")]);
        as_root(&["chmod", "755", &path(".")]);
        Self {
            user: LimitedUser::new(),
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The words that run the program.
    fn work(&self) -> String {
        format!(
            "{} {}",
            self.path("work").display(),
            self.path("stop").display()
        )
    }

    /// Starts `distlock run job ARGS -- sh -c SCRIPT`, and waits until the program is root. Returns
    /// the tool and the id of the program.
    fn start(&self, args: &[&str], script: &str) -> (Process, u32) {
        let words = [&["run", "job"], args, &["--", "sh", "-c", script]].concat();
        let tool = Process::spawn(&mut self.user.tool(None, &words)).unwrap();
        let work = printed_id(&tool, "work");
        (tool, work)
    }

    fn run(&self, words: &[&str]) -> Finished {
        finish(&mut self.user.tool(None, words), "")
    }

    fn state(&self) -> serde_json::Value {
        self.run(&["inspect", "job", "--json"]).json()
    }

    /// Frees the lock by force.
    fn take_lock_away(&self) {
        let token = self.state()["token"].to_string();
        let forced = self.run(&["force-release", "job", "--token", &token]);
        assert_eq!(forced.code, 0, "{forced:?}");
    }

    /// Ends the program.
    fn stop(&self) {
        fs::write(self.path("stop"), "").unwrap();
    }
}

impl Drop for OtherUser {
    fn drop(&mut self) {
        let _ = fs::write(self.path("stop"), "");
    }
}

/// A folder whose file system honours set-user-ID programs.
fn folder_for_set_user_id() -> TempDir {
    let honours = |folder: &Path| {
        statvfs(folder).is_ok_and(|it| !it.f_flag.contains(StatVfsMountFlags::NOSUID))
    };
    let mut folders = vec![env::temp_dir(), "/var/tmp".into(), "/dev/shm".into()];
    folders.retain(|it| honours(it));
    let folder = folders
        .first()
        .expect("a folder on a file system that is not mounted nosuid");
    tempfile::tempdir_in(folder).unwrap()
}

/// Runs a program as root, by `sudo` if the tests have another user.
fn as_root(words: &[&str]) {
    let sudo: &[&str] = match geteuid().is_root() {
        true => &[],
        false => &["sudo", "-n"],
    };
    let words = [sudo, words].concat();
    let done = Command::new(words[0]).args(&words[1..]).status().unwrap();
    assert!(done.success(), "{words:?} needs root, or sudo");
}

/// Checks that the tool has ended because of a lost lock, named the program that it could not end,
/// and claimed no kill.
#[track_caller]
fn assert_loss_was_told(tool: &Process, ended: ExitStatus, work: u32) {
    let output = tool.output();
    assert_eq!(ended.code(), Some(76), "{output}");
    assert!(output.contains("\"job\" was lost"), "{output}");
    let who = format!("process {work} (work, uid 0)");
    assert!(output.contains(&who), "{output}");
    let says = "may still run, without the lock";
    assert!(output.contains(says), "{output}");
    assert!(!output.contains("was killed"), "{output}");
    assert!(state_of(work).is_some(), "{output}");
}

#[test]
fn a_command_of_another_user_is_warned_about_and_named_when_the_lock_is_lost() {
    let other = OtherUser::new();
    let script = format!("exec {}", other.work());
    let words = ["run", "job", "--", "sh", "-c", &script];
    // On a busy machine, the shell may replace itself later than the tool looks. A program that is
    // started directly has its user by then, so the tool warns.
    for direct in [false, true] {
        let mut command = other
            .user
            .tool(None, if direct { &words[..3] } else { &words });
        if direct {
            command.args([other.path("work"), other.path("stop")]);
        }
        let mut tool = Process::spawn(&mut command).unwrap();
        let work = printed_id(&tool, "work");
        let warning = format!("warning: the command (process {work}) runs as uid 0");
        if direct {
            let line = tool.wait_for_line(SOON, |line| line.contains(&warning));
            let line = line.unwrap();
            assert!(line.contains("sudo distlock run"), "{line}");
        }
        other.take_lock_away();
        let ended = tool.wait(SOON).unwrap();
        assert_loss_was_told(&tool, ended, work);
        other.stop();
        wait_until_gone(work);
        fs::remove_file(other.path("stop")).unwrap();
    }
}

/// The tool ends at the deadline of a lease that cannot be renewed, long before the command does.
#[test]
fn the_tool_ends_at_the_deadline_although_its_command_does_not() {
    let other = OtherUser::new();
    let (mut tool, work) = other.start(&["--ttl", "2s"], &format!("exec {}", other.work()));
    // The store is gone, so every renewal fails.
    let store = other.user.tool.parent().unwrap().join("locks.db");
    let _blocking = BlockingWriter::on(store);
    let ended = tool.wait(SOON).unwrap();
    assert_loss_was_told(&tool, ended, work);
    assert!(
        tool.output().contains("it is not terminated"),
        "{}",
        tool.output()
    );
}

/// The system reports no error for a signal to a group if one member accepts it.
#[test]
fn a_part_of_the_command_that_changed_its_user_is_named() {
    let other = OtherUser::new();
    let script = format!("echo shell $$; {} & wait", other.work());
    let (mut tool, work) = other.start(&[], &script);
    let shell = printed_id(&tool, "shell");
    other.take_lock_away();
    let ended = tool.wait(SOON).unwrap();
    assert_loss_was_told(&tool, ended, work);
    assert!(state_of(shell).is_none(), "{}", tool.output());
    assert!(
        !tool.output().contains(&format!("{shell} (sh")),
        "{}",
        tool.output()
    );
}

/// A process that the command left running uses what the lock protects, so the lock is kept for it.
#[test]
fn the_lock_is_kept_while_a_leftover_of_another_user_runs() {
    let other = OtherUser::new();
    let script = format!("{} & sleep 0.5; exit 3", other.work());
    let (mut tool, work) = other.start(&["--ttl", "2s"], &script);
    let kept = |line: &str| line.contains("the lock is kept until that has ended");
    let line = tool.wait_for_line(SOON, kept).unwrap();
    assert!(
        line.contains(&format!("process {work} (work, uid 0)")),
        "{line}"
    );
    // This is longer than the tool waits for killed processes that are stuck in the kernel.
    std::thread::sleep(Duration::from_secs(11));
    assert_eq!(other.state()["state"], "held", "{}", tool.output());
    other.stop();
    assert_eq!(
        tool.wait(SOON).unwrap().code(),
        Some(3),
        "{}",
        tool.output()
    );
    assert_eq!(other.state()["state"], "free");
    assert_eq!(tool.output().matches("the lock is kept").count(), 1);
}

/// A command that cannot be paused would run on while nobody renews its lock.
#[test]
fn a_tool_whose_command_cannot_be_paused_or_ended_goes_on_and_says_so() {
    let other = OtherUser::new();
    let (mut tool, work) = other.start(&["--ttl", "2s"], &format!("exec {}", other.work()));
    for (signal, says) in [
        (Signal::TSTP, "the command is not paused"),
        (Signal::TERM, "it did not get the signal"),
    ] {
        tool.signal(signal).unwrap();
        let line = tool
            .wait_for_line(SOON, |line| line.contains(says))
            .unwrap();
        assert!(
            line.contains(&format!("process {work} (work, uid 0)")),
            "{line}"
        );
    }
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(other.state()["state"], "held", "{}", tool.output());
    assert_ne!(state_of(tool.id()), Some('T'));
    other.stop();
    eventually("the tool ends", SOON, || !tool.is_running().unwrap()).unwrap();
    assert_eq!(
        tool.wait(SOON).unwrap().code(),
        Some(0),
        "{}",
        tool.output()
    );
}
