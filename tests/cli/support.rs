//! Further means of these tests: processes that hold a lock, pipes that nobody reads, and a store
//! that is blocked.

use std::{
    fs,
    io::{PipeReader, PipeWriter, Read as _, Write as _},
    os::{fd::AsRawFd as _, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    process::Command,
};

use distlock_harness::{Process, eventually};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::Value;

pub(crate) use crate::home::{Finished, Home, SOON, finish};

impl Home {
    /// The names of all files in the folder, the store included.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names = fs::read_dir(self.path("."))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect::<Vec<_>>();
        names.sort();
        names
    }

    /// Runs `inspect --json`, and returns its result.
    pub(crate) fn inspect(&self, name: &str) -> Value {
        let done = self.run(["inspect", name, "--json"]);
        assert_eq!(done.code, 0, "{done:?}");
        done.json()
    }

    /// Starts the tool and leaves it running. It is killed when the test ends.
    pub(crate) fn start<A: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = A>,
    ) -> Process {
        Process::spawn(&mut self.distlock(args)).unwrap()
    }

    /// Starts `distlock run NAME ARGS -- sh -c SCRIPT` and waits until the script printed `ready`.
    pub(crate) fn hold(&self, name: &str, args: &[&str], script: &str) -> Process {
        let script = format!("echo ready; {script}");
        let line = [&["run", name], args, &["--", "sh", "-c", &script]].concat();
        let process = self.start(line);
        process.wait_for_line(SOON, |line| line == "ready").unwrap();
        process
    }
}

/// The state letter of a process; `None` when it has ended. A zombie counts as ended.
pub(crate) fn state_of(process: u32) -> Option<char> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    let state = String::from_utf8_lossy(&stat)
        .rsplit_once(") ")?
        .1
        .chars()
        .next()?;
    (!"ZX".contains(state)).then_some(state)
}

/// Waits until a process has ended.
#[track_caller]
pub(crate) fn wait_until_gone(process: u32) {
    eventually("the process is gone", SOON, || state_of(process).is_none()).unwrap();
}

/// Waits until a file ends with a complete line, and returns the content of the file.
#[track_caller]
pub(crate) fn read_whole_lines(path: &Path) -> String {
    let mut text = String::new();
    eventually("the file is written", SOON, || {
        text = fs::read_to_string(path).unwrap_or_default();
        text.ends_with('\n')
    })
    .unwrap();
    text
}

/// The same call of the tool, started by another program. The call follows the arguments of that
/// program.
pub(crate) fn run_through<A: AsRef<std::ffi::OsStr>>(
    program: &str,
    args: impl IntoIterator<Item = A>,
    tool: &Command,
) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .arg(tool.get_program())
        .args(tool.get_args());
    for (name, value) in tool.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// The socket on which a service manager hears of its services.
pub(crate) struct NotifySocket {
    pub(crate) path: PathBuf,
    pub(crate) socket: UnixDatagram,
}

impl NotifySocket {
    pub(crate) fn new(home: &Home) -> Self {
        let path = home.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self { path, socket }
    }

    /// Waits for the next message.
    #[track_caller]
    pub(crate) fn next(&self) -> String {
        let mut text = [0; 1024];
        let read = self.socket.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..read]).into_owned()
    }
}

/// A pipe that nobody reads.
pub(crate) struct UnreadPipe {
    reader: PipeReader,
    writer: PipeWriter,
}

impl UnreadPipe {
    pub(crate) fn new() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        Self { reader, writer }
    }

    /// Fills the pipe, so that every later write blocks.
    pub(crate) fn fill(&mut self) {
        let flags = fcntl_getfl(&self.writer).unwrap();
        fcntl_setfl(&self.writer, flags | OFlags::NONBLOCK).unwrap();
        while self.writer.write(&[b'\n'; 4096]).is_ok() {}
    }

    /// Reads one line, so that the pipe has room again.
    pub(crate) fn read_line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\n") {
            self.reader.read_exact(&mut byte).unwrap();
            line.extend(byte);
        }
        String::from_utf8(line).unwrap()
    }

    /// The same call of the tool, with one of its output streams going to this pipe.
    pub(crate) fn redirect(&self, stream: u32, tool: &Command) -> Command {
        // The pipe is opened again for the tool: flags of this end, such as non-blocking, must not
        // apply to the other end.
        let pipe = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.writer.as_raw_fd()
        );
        let script = format!("exec \"$@\" {stream}>{pipe}");
        run_through("sh", ["-c", &script, "sh"], tool)
    }
}

/// Waits until a thread of a process blocks in a write to this stream.
#[track_caller]
pub(crate) fn wait_until_blocked_on(process: u32, stream: u32) {
    let writes = format!(" {stream:#x} ");
    eventually("it waits for a reader", SOON, || {
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        threads.flatten().any(|thread| {
            // The file contains the number of the system call, followed by its arguments.
            let call = fs::read_to_string(thread.path().join("syscall")).unwrap_or_default();
            call.find(' ')
                .is_some_and(|at| call[at..].starts_with(&writes))
        })
    })
    .unwrap();
}

/// Holds the write lock of the store file until the value is dropped.
pub(crate) struct BlockingWriter {
    release: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl BlockingWriter {
    pub(crate) fn new(home: &Home) -> Self {
        Self::on(home.store())
    }

    pub(crate) fn on(path: PathBuf) -> Self {
        use sqlx::{ConnectOptions as _, Connection as _};
        let (release, released) = std::sync::mpsc::channel();
        let (locked, is_locked) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let options = sqlx::sqlite::SqliteConnectOptions::new()
                    .filename(path)
                    .busy_timeout(SOON);
                let mut connection = options.connect().await.unwrap();
                sqlx::query("begin immediate")
                    .execute(&mut connection)
                    .await
                    .unwrap();
                locked.send(()).unwrap();
                let _ = released.recv();
                sqlx::query("rollback")
                    .execute(&mut connection)
                    .await
                    .unwrap();
                connection.close().await.unwrap();
            });
        });
        is_locked.recv().unwrap();
        Self {
            release: Some(release),
            thread: Some(thread),
        }
    }
}

impl Drop for BlockingWriter {
    fn drop(&mut self) {
        drop(self.release.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs `distlock run` on `url`, and cuts the store off with `cut` 0.9 s before the command ends by
/// itself, long before the end of the lease. The command must count as successful, although no
/// release reached the store.
pub(crate) fn assert_success_without_release(
    home: &Home,
    url: &str,
    args: &[&str],
    cut: impl FnOnce(),
) {
    let script = "echo ready; while ! [ -e go ]; do sleep 0.01; done; sleep 0.9; echo done";
    let line = [&["run", "job"], args, &["--", "sh", "-c", script]].concat();
    let mut run = Process::spawn(home.bare(line).env("DISTLOCK_BACKEND", url)).unwrap();
    run.wait_for_line(SOON, |line| line == "ready").unwrap();
    cut();
    home.write("go", "");
    let status = run.wait(SOON * 2).unwrap();
    let output = run.output();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(output.contains("done"), "{output}");
    assert!(output.contains("warning: "), "{output}");
}
