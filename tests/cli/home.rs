//! Gives each test a home: a folder, a store in the folder, and calls of the program under test
//! with an empty environment. The tests of `distlock-lab` use this file too.

use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;

/// The deadline of every step that has no reason to take long, on a machine that is busy with other
/// tests.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A folder with a store. Dropping the value removes the folder.
pub(crate) struct Home {
    folder: TempDir,
}

/// The exit code and the output of a finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The bearer token of administrators in these tests.
pub(crate) const ADMIN_TOKEN: &str = "what administrators show";

impl Home {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The store's file.
    pub(crate) fn store(&self) -> PathBuf {
        self.path("locks.db")
    }

    /// A call of the tool with the store of this home as its backend.
    pub(crate) fn distlock<A: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = self.bare(args);
        command.env(
            "DISTLOCK_BACKEND",
            format!("sqlite:{}", self.store().display()),
        );
        command.env("DISTLOCK_GATEWAY_ADMIN_TOKEN", ADMIN_TOKEN);
        command
    }

    /// A call of the tool without any configuration.
    pub(crate) fn bare<A: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Command {
        let mut command = Command::new(crate::PROGRAM);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DISTLOCK_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("HOME", self.folder.path())
            .env_remove("XDG_STATE_HOME")
            .current_dir(self.folder.path());
        command
    }

    /// Runs the tool to its end.
    pub(crate) fn run<A: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Finished {
        finish(&mut self.distlock(args), "")
    }

    /// Runs a statement on the tables of the store without the library, and returns the number of
    /// changed rows.
    pub(crate) fn sql(&self, statement: &str) -> u64 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            use sqlx::{ConnectOptions as _, Connection as _};
            let options = sqlx::sqlite::SqliteConnectOptions::new()
                .filename(self.store())
                .busy_timeout(SOON);
            let mut connection = options.connect().await.unwrap();
            let done = sqlx::query(sqlx::AssertSqlSafe(statement.to_owned()))
                .execute(&mut connection)
                .await
                .unwrap();
            connection.close().await.unwrap();
            done.rows_affected()
        })
    }

    /// Writes a file into the folder.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Finished {
    /// Parses the only line of standard output as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.stdout.trim()).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// Checks the exit code, a part of the message, and that there is no result.
    #[track_caller]
    pub(crate) fn assert_failed(&self, code: i32, says: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.stderr.contains(says), "{says:?} is not in {self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
    }
}

/// Runs a command to its end, with the given text as its standard input.
pub(crate) fn finish(command: &mut Command, input: &str) -> Finished {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may close the pipe early, so an error is ignored.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Finished {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}
