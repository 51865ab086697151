//! `distlock run --read`, `--write`, `--permits` and `--fair`: who runs together, and what
//! `inspect`, `list` and `resize` show.

use std::fs;

use distlock_harness::{
    Process, eventually,
    servers::{redis::RedisServer, zookeeper::ZooKeeper},
};
use serde_json::json;

use crate::support::{Finished, Home, SOON, finish};

#[test]
fn shared_locks_are_shared_on_sqlite() {
    let home = Home::new();
    let url = format!("sqlite:{}", home.store().display());
    Shared::new(&home, &url).are_shared();
}

#[test]
fn shared_locks_are_shared_on_redis() {
    let (home, server) = (Home::new(), RedisServer::start().unwrap());
    Shared::new(&home, &server.url()).are_shared();
}

#[test]
fn shared_locks_are_shared_on_zookeeper() {
    let (home, server) = (Home::new(), ZooKeeper::start().unwrap());
    Shared::new(&home, &format!("zookeeper://{}/app", server.servers())).are_shared();
}

struct Shared<'a> {
    home: &'a Home,
    url: &'a str,
}

impl<'a> Shared<'a> {
    const fn new(home: &'a Home, url: &'a str) -> Self {
        Self { home, url }
    }

    fn run(&self, words: &[&str]) -> Finished {
        let mut command = self.home.bare(words);
        finish(command.env("DISTLOCK_BACKEND", self.url), "")
    }

    /// Starts a command that prints its permits and runs until the file `end` exists.
    fn start(&self, options: &[&str], end: &str) -> Process {
        let end = self.home.path(end);
        let script = format!(
            "echo \"has <$DISTLOCK_INDICES>\"; while [ ! -e {} ]; do sleep 0.1; done",
            end.display()
        );
        let words = [&["run"], options, &["--", "sh", "-c", &script]].concat();
        let mut command = self.home.bare(words);
        let started = Process::spawn(command.env("DISTLOCK_BACKEND", self.url)).unwrap();
        started
            .wait_for_line(SOON, |line| line.starts_with("has <"))
            .unwrap();
        started
    }

    fn end(&self, end: &str, processes: &mut [Process]) {
        fs::write(self.home.path(end), "").unwrap();
        for process in processes {
            let status = process.wait(SOON).unwrap();
            assert!(status.success(), "{}: {}", self.url, process.output());
        }
    }

    fn are_shared(&self) {
        self.readers_run_together();
        self.permits_are_counted();
    }

    fn readers_run_together(&self) {
        let reader = |label| self.start(&["--read", "files", "--holder", label], "read");
        let mut readers = [reader("one"), reader("two")];
        let busy = self.run(&["run", "--write", "files", "-n", "--", "true"]);
        assert_eq!(busy.code, 75, "{}: {busy:?}", self.url);
        let shown = self.run(&["inspect", "files", "--json"]).json();
        assert_eq!(shown["state"], "free", "the plain lock: {shown}");
        let info = &shown["shared"][0];
        assert_eq!(
            (&info["kind"], &info["state"]),
            (&json!("rw"), &json!("held"))
        );
        let label = |place: usize| &info["holders"][place]["holder"];
        assert_eq!((label(0), label(1)), (&json!("one"), &json!("two")));
        let text = self.run(&["inspect", "files"]).stdout;
        assert!(text.contains("files (rw): 2 readers"), "{text}");
        let listed = self.run(&["list"]).stdout;
        assert!(listed.contains("2 readers"), "{listed}");
        assert!(!listed.contains("~shared~"), "{listed}");
        let parts = self.run(&["list", "~shared~/"]).stdout;
        assert!(parts.lines().count() > 2, "{parts}");
        self.end("read", &mut readers);
        let mut writer = [self.start(&["--write", "files"], "written")];
        let busy = self.run(&["run", "--read", "files", "-n", "--", "true"]);
        assert_eq!(busy.code, 75, "{}: {busy:?}", self.url);
        self.end("written", &mut writer);
        eventually("nobody holds it", SOON, || {
            self.run(&["inspect", "files", "--json"]).json()["shared"].is_null()
        })
        .unwrap();
    }

    fn permits_are_counted(&self) {
        let mut two = [self.start(&["--permits", "2/3", "jobs"], "done")];
        assert!(two[0].output().contains("has <0,1>"), "{}", two[0].output());
        let busy = self.run(&["run", "--permits", "2/3", "jobs", "-n", "--", "true"]);
        assert_eq!(busy.code, 75, "{}: {busy:?}", self.url);
        let script = "echo $DISTLOCK_INDICES";
        let one = ["run", "--permits", "1/3", "jobs", "--", "sh", "-c", script];
        let one = self.run(&one);
        assert_eq!((one.code, one.stdout.trim()), (0, "2"), "{one:?}");
        let shown = self.run(&["inspect", "jobs", "--json"]).json();
        let info = &shown["shared"][0];
        assert_eq!(
            (&info["kind"], &info["capacity"], &info["free"]),
            (&json!("semaphore"), &json!(3), &json!(1)),
            "{shown}"
        );
        let other = self.run(&["run", "--permits", "1/4", "jobs", "-n", "--", "true"]);
        assert_ne!(other.code, 0, "{other:?}");
        let names_both = ["3", "4"].iter().all(|it| other.stderr.contains(it));
        assert!(names_both, "{other:?}");
        self.capacity_is_changed(&other.stderr);
        self.end("done", &mut two);
        let nobody = self
            .run(&["resize", "jobs", "--permits", "5", "--json"])
            .json();
        assert_eq!(nobody["on_record"], false, "{nobody}");
    }

    /// Two of three permits are held. `refused` is the message to a caller that asked for one of 4.
    fn capacity_is_changed(&self, refused: &str) {
        let advised = "`distlock resize jobs --permits 4` changes it";
        assert!(refused.contains(advised), "{refused}");
        let changed = self.run(&["resize", "jobs", "--permits", "4"]);
        assert_eq!(changed.code, 0, "{changed:?}");
        let says = "2 of 4 permits are free, 1 holder";
        assert!(changed.stderr.contains(says), "{changed:?}");
        let script = "echo $DISTLOCK_INDICES";
        let wanted = [
            "run",
            "--permits",
            "2/4",
            "jobs",
            "-n",
            "--",
            "sh",
            "-c",
            script,
        ];
        let got = self.run(&wanted);
        assert_eq!((got.code, got.stdout.trim()), (0, "2,3"), "{got:?}");
        let less = self.run(&["resize", "jobs", "--permits", "1", "--json"]);
        let says = json!({"name": "jobs", "capacity": 1, "on_record": true});
        assert_eq!(less.json(), says, "{less:?}");
        let busy = self.run(&["run", "--permits", "1/1", "jobs", "-n", "--", "true"]);
        assert_eq!(busy.code, 75, "the two that are held fill it: {busy:?}");
    }
}

#[test]
fn impossible_options_change_nothing() {
    let home = Home::new();
    let lines: [(&[&str], &str); 10] = [
        (&["run", "--read", "--write", "x"], "--write"),
        (&["run", "--read", "--permits", "1/2", "x"], "--permits"),
        (&["run", "--read", "--every", "1h", "x"], "--every"),
        (&["run", "--read", "--fair", "x"], "--fair"),
        (&["run", "--permits", "2", "x"], "2/8"),
        (&["run", "--permits", "0/2", "x"], "0 permits"),
        (&["run", "--permits", "3/2", "x"], "3 permits"),
        (&["run", "--permits", "1/0", "x"], "of 0 permits"),
        (&["run", "--read", "~shared~/x"], "~shared~/"),
        (&["run", "~shared~/x"], "~shared~/"),
    ];
    for (words, says) in lines {
        let ran = home.path("ran");
        let words = [words, &["--", "touch", ran.to_str().unwrap()]].concat();
        let done = home.run(&words);
        assert_ne!(done.code, 0, "{words:?}: {done:?}");
        assert!(done.stderr.contains(says), "{words:?}: {done:?}");
        assert!(!ran.exists(), "{words:?}");
    }
}

#[test]
fn impossible_numbers_of_permits_are_refused() {
    let home = Home::new();
    for (words, says) in [
        (["resize", "x", "--permits", "0"], "of 0 permits"),
        (["resize", "x", "--permits", "30001"], "30000"),
        (["resize", "x", "--permits", "many"], "many"),
        (["resize", "~shared~/x", "--permits", "2"], "~shared~/"),
    ] {
        let done = home.run(words);
        assert_eq!(done.code, 64, "{words:?}: {done:?}");
        assert!(done.stderr.contains(says), "{words:?}: {done:?}");
    }
}

#[test]
fn a_store_without_a_queue_refuses_fair() {
    let home = Home::new();
    let url = format!("kv+sqlite:{}", home.store().display());
    let mut command = home.bare(["run", "--fair", "job", "--", "true"]);
    let done = finish(command.env("DISTLOCK_BACKEND", url), "");
    assert_eq!(done.code, 78, "{done:?}");
    let done = home.run(["run", "--fair", "job", "--", "true"]);
    assert_eq!(done.code, 0, "{done:?}");
}
