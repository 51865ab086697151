//! Runs the tool as a user of its own, with a limited number of threads and processes.

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
/// The advice in the message about a refused thread or process.
pub(crate) const SAYS: &str = "raise the limit of processes";

/// A user with a limited number of processes and threads. The limit does not apply to root, so the
/// tests use another user when root runs them.
pub(crate) struct LimitedUser {
    home: Home,
    pub(crate) user: u32,
    pub(crate) tool: PathBuf,
}

impl LimitedUser {
    pub(crate) fn new() -> Self {
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
    pub(crate) fn is_alone(&self) -> bool {
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

    /// The first words of a command that runs as the user.
    fn as_this_user(&self) -> Vec<String> {
        if !self.is_alone() {
            return Vec::new();
        }
        vec![
            "setpriv".to_owned(),
            "--clear-groups".to_owned(),
            format!("--reuid={0}", self.user),
            format!("--regid={0}", self.user),
        ]
    }

    /// Changes the limit of processes for a running process of the user, in the form of `prlimit`.
    pub(crate) fn limit_processes(&self, process: u32, limit: &str) {
        let mut line = self.as_this_user();
        line.extend(["prlimit".to_owned(), format!("--pid={process}")]);
        line.push(format!("--nproc={limit}"));
        let done = Command::new(&line[0]).args(&line[1..]).status().unwrap();
        assert!(done.success(), "{line:?}");
    }

    /// A call of the tool that may start at most `room` threads and processes.
    pub(crate) fn tool(&self, room: Option<usize>, words: &[&str]) -> Command {
        let mut line = self.as_this_user();
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
    pub(crate) fn wait_until_idle(&self) {
        if self.is_alone() {
            eventually("the user's processes end", SOON, || self.threads() == 0).unwrap();
        }
    }

    /// Runs the tool with a rising limit until it succeeds. `adjust` changes each call, and `look`
    /// checks each failure.
    pub(crate) fn run_with_growing_room(
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
