//! On a system that refuses a further thread or process, the tool reports that and ends with 69.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use distlock_harness::eventually;
use rustix::process::geteuid;

use crate::support::{Finished, Home, SOON, finish};

/// A number of threads and processes that is enough for each of these commands.
const ENOUGH: usize = 30;
const SAYS: &str = "raise the limit of processes";

/// A user with a limited number of processes and threads. The limit does not apply to root, so the
/// tests use another user when root runs them.
struct LimitedUser {
    home: Home,
    user: u32,
    tool: PathBuf,
}

impl LimitedUser {
    fn new() -> Self {
        let home = Home::new();
        let folder = home.path("theirs");
        fs::create_dir(&folder).unwrap();
        let tool = folder.join("distlock");
        let built = env!("CARGO_BIN_EXE_distlock");
        // Other users may have no access to the folders of the built tool, so it is linked into
        // this folder.
        fs::hard_link(built, &tool)
            .or_else(|_| fs::copy(built, &tool).map(drop))
            .unwrap();
        let user = match geteuid() {
            root if root.is_root() => {
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let next = std::process::id() * 8 + NEXT.fetch_add(1, Ordering::Relaxed);
                let user = 40_000 + next % 20_000;
                chown(&folder, Some(user), Some(user)).unwrap();
                let open = fs::Permissions::from_mode(0o755);
                fs::set_permissions(home.path("."), open).unwrap();
                user
            }
            own => own.as_raw(),
        };
        Self { home, user, tool }
    }

    /// Whether only this test uses the user, so that no other program starts or ends processes of
    /// the user.
    fn is_alone(&self) -> bool {
        geteuid().as_raw() != self.user
    }

    /// The number of threads of all processes of the user.
    fn threads(&self) -> usize {
        let of = |process: fs::DirEntry| {
            let status = fs::read_to_string(process.path().join("status")).ok()?;
            let figure = |name| {
                let line = status.lines().find(|line| line.starts_with(name))?;
                line.split_whitespace().nth(1)?.parse::<u32>().ok()
            };
            (figure("Uid:")? == self.user).then_some(())?;
            usize::try_from(figure("Threads:")?).ok()
        };
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(of).sum()
    }

    /// A call of the tool that may start at most `room` threads and processes.
    fn tool(&self, room: Option<usize>, words: &[&str]) -> Command {
        let mut line = Vec::new();
        if self.is_alone() {
            line.extend(["setpriv".to_owned(), "--clear-groups".to_owned()]);
            line.extend([
                format!("--reuid={0}", self.user),
                format!("--regid={0}", self.user),
            ]);
        }
        if let Some(room) = room {
            let most = self.threads() + room;
            line.extend(["prlimit".to_owned(), format!("--nproc={most}:{most}")]);
        }
        line.push(self.tool.to_str().unwrap().to_owned());
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).args(words);
        // The variables of the person who runs the tests are removed.
        for (name, value) in self.home.bare([""; 0]).get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let folder = self.tool.parent().unwrap();
        command.current_dir(folder).env("HOME", folder).env(
            "DISTLOCK_BACKEND",
            format!("sqlite:{}", folder.join("locks.db").display()),
        );
        command
    }

    /// Waits until all processes of the last run have ended, because each of them counts for the
    /// limit.
    fn wait_until_idle(&self) {
        if self.is_alone() {
            eventually("the user's processes end", SOON, || self.threads() == 0).unwrap();
        }
    }

    /// Runs the tool with a rising limit until it succeeds. `adjust` changes each call, and `look`
    /// checks each failure.
    fn run_with_growing_room(
        &self,
        words: &[&str],
        adjust: impl Fn(&mut Command),
        look: impl Fn(&Finished),
    ) {
        for room in 1..=ENOUGH {
            self.wait_until_idle();
            let mut tool = self.tool(Some(room), words);
            adjust(&mut tool);
            let done = finish(&mut tool, "");
            let said = format!("{words:?} with room for {room}: {done:?}");
            assert!(!done.stderr.contains("panicked"), "{said}");
            if done.code == 0 {
                assert!(room > 1 || !self.is_alone(), "nothing was limited: {said}");
                return;
            }
            assert_eq!(done.code, 69, "{said}");
            assert!(done.stderr.contains(SAYS), "{said}");
            self.wait_until_idle();
            look(&done);
        }
        panic!("{words:?} does not even run with room for {ENOUGH}");
    }
}

#[test]
fn each_command_reports_a_missing_thread() {
    let few = LimitedUser::new();
    for words in [
        &["acquire", "job", "--ttl", "1s"][..],
        &["inspect", "job"],
        &["list"],
        &["doctor"],
        &["migrate"],
    ] {
        few.run_with_growing_room(words, |_| {}, |_| {});
    }
}

/// A failure leaves no partial result: the command was not started, and the lock is free or
/// expires.
#[test]
fn run_reports_a_missing_thread_and_leaves_no_lock_behind() {
    let few = LimitedUser::new();
    let script = "echo ran > ran";
    let words = ["run", "job", "--ttl", "2s", "--", "sh", "-c", script];
    let ran = few.tool.parent().unwrap().join("ran");
    let not_done = |_: &Finished| {
        assert!(!ran.exists(), "the command ran");
        let free = || {
            let done = finish(&mut few.tool(None, &["inspect", "job", "--json"]), "");
            done.json()["state"] == "free"
        };
        eventually("the lock is free", SOON, free).unwrap();
    };
    few.run_with_growing_room(&words, |_| {}, not_done);
    assert!(ran.exists());
}

#[test]
fn a_gateway_node_reports_a_missing_thread() {
    let few = LimitedUser::new();
    let words = [
        "gateway",
        "run",
        "--node",
        "n1",
        "--listen",
        "127.0.0.1:0",
        "--peer-listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--events",
        "--exit-with-stdin",
    ];
    let key = |tool: &mut Command| {
        tool.env(
            "DISTLOCK_GATEWAY_TOKEN_KEY",
            "a key that is long enough for HS256",
        );
    };
    few.run_with_growing_room(&words, key, |_| {});
}

/// A look-up of a host name needs a thread, and drivers have no error for a missing thread.
#[test]
fn a_driver_without_a_thread_is_no_bug() {
    let few = LimitedUser::new();
    for (url, most) in [
        ("redis://localhost:1", 2),
        ("redis+cluster://localhost:1", 2),
        ("redis+sentinel://localhost:1/main", 2),
        ("mysql://u@localhost:1/d", 2),
        ("postgres://u@localhost:1/d", 2),
        // The ZooKeeper client starts threads of its own.
        ("zookeeper://localhost:1/r", 5),
    ] {
        for room in 1..=most {
            few.wait_until_idle();
            let mut list = few.tool(Some(room), &["list", "--backend", url]);
            let done = finish(&mut list, "");
            let said = format!("{url} with room for {room}: {done:?}");
            assert_eq!(done.code, 69, "{said}");
            assert!(!done.stderr.contains("panicked"), "{said}");
            let is_limited = room == 1 && few.is_alone();
            assert!(!is_limited || done.stderr.contains(SAYS), "{said}");
        }
    }
}
