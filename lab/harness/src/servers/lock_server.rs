//! Private lock servers: `distlock serve` with locks in its memory, or as an agent of a store.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{Process, Signal, distlock_binary, free_port};

/// Time-out for the start and for the end of a server. Other tests may use every processor.
const SOON: Duration = Duration::from_secs(30);
/// Number of ports that are tried. Another process can take a free port before the server does.
const PORTS: usize = 5;
/// The exit code of a server that a file or a setting keeps from starting.
const CONFIG: i32 = 78;

/// A lock server. It keeps its address when it is restarted.
#[derive(Debug)]
pub struct LockServer {
    process: Option<Process>,
    address: SocketAddr,
    /// The URL of the store, which may have a password: `memory:` for a server of its own.
    backend: String,
    max_lease: Duration,
    folder: TempDir,
}

impl LockServer {
    /// Starts a server that keeps its locks in its memory, with an empty state.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub fn in_memory(max_lease: Duration) -> Result<Self> {
        Self::start("memory:", max_lease)
    }

    /// Starts an agent of the store at this URL.
    ///
    /// # Errors
    /// Returns an error if the agent does not start.
    pub fn agent(store: &str, max_lease: Duration) -> Result<Self> {
        Self::start(store, max_lease)
    }

    fn start(backend: &str, max_lease: Duration) -> Result<Self> {
        let mut server = Self {
            process: None,
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            backend: backend.to_owned(),
            max_lease,
            folder: tempfile::tempdir().context("a folder for a lock server")?,
        };
        let mut last = Ok(());
        for _ in 0..PORTS {
            server.address = (Ipv4Addr::LOCALHOST, free_port()?).into();
            last = server.spawn(true);
            if last.is_ok() {
                break;
            }
        }
        last?;
        Ok(server)
    }

    fn is_in_memory(&self) -> bool {
        self.backend == "memory:"
    }

    /// Starts the process, and waits until it serves. `is_new` says that no server has granted
    /// locks before.
    fn spawn(&mut self, is_new: bool) -> Result<()> {
        let process = self.launch(is_new)?;
        process.wait_for_line(SOON, |line| line.contains(r#""event":"ready""#))?;
        self.process = Some(process);
        Ok(())
    }

    fn launch(&self, is_new: bool) -> Result<Process> {
        let (address, state) = (self.address.to_string(), self.state_path());
        let max_lease = format!("{}ms", self.max_lease.as_millis());
        let state = state.to_str().context("a path that is text")?;
        let mut arguments = vec!["serve", "--max-lease", &max_lease, "--listen", &address];
        if self.is_in_memory() {
            arguments.extend(["--state", state]);
            if is_new {
                arguments.push("--init");
            }
        }
        // No setting and no folder of the user reaches the server.
        let command = |name| {
            let mut command = Command::new(name);
            command.env_clear().env("HOME", self.folder.path());
            command.env("DISTLOCK_BACKEND", &self.backend);
            command
        };
        Process::serve_with_command(command, distlock_binary()?.as_os_str(), &arguments)
    }

    /// Returns the address of the server.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL by which a client opens the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("distlock://{}", self.address)
    }

    /// Returns the path of the state file of a server with locks in its memory.
    #[must_use]
    pub fn state_path(&self) -> PathBuf {
        self.folder.path().join("server.state")
    }

    /// Returns the id of the process; `None` while the server is down.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Sends a signal to the server.
    ///
    /// # Errors
    /// Returns an error if the server does not run.
    pub fn signal(&self, which: Signal) -> Result<()> {
        let process = self.process.as_ref().context("the lock server is down")?;
        process.signal(which)
    }

    /// Kills the server without a shutdown.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts a server that is down, on the files that it kept.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.spawn(false)
    }

    /// Stops the server in order, so that it stores its locks.
    ///
    /// # Errors
    /// Returns an error if the server does not end, or ends with an error.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let mut process = self.process.take().context("the lock server is down")?;
        let status = process.wait(SOON)?;
        ensure!(status.success(), "{status}: {}", process.output());
        Ok(())
    }

    /// Starts a server that is down as a new one, without the state that it has stored.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub fn restart_as_new(&mut self) -> Result<()> {
        self.remove_state()?;
        // It says that a server has started here before.
        fs::remove_file(self.folder.path().join("server.state.lock"))?;
        self.spawn(true)
    }

    /// Removes the state of a server that is down.
    ///
    /// # Errors
    /// Returns an error if the file cannot be removed.
    pub fn remove_state(&self) -> Result<()> {
        fs::remove_file(self.state_path()).context("remove the state file")
    }

    /// Returns the longest lease.
    #[must_use]
    pub const fn max_lease(&self) -> Duration {
        self.max_lease
    }

    /// Sets the longest lease of the next start.
    pub const fn set_max_lease(&mut self, max_lease: Duration) {
        self.max_lease = max_lease;
    }

    /// Returns the files of the state that are there now: their names and contents.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read.
    pub fn state_files(&self) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let mut files = Vec::new();
        for name in ["server.state", "server.state.locks", "server.state.lock"] {
            let path = self.folder.path().join(name);
            // A server that stops during its recovery exports no locks.
            if path.exists() {
                let content =
                    fs::read(&path).with_context(|| format!("read {}", path.display()))?;
                files.push((path, content));
            }
        }
        Ok(files)
    }

    /// Starts a server that is down with all of these files of an earlier time, so that it cannot
    /// notice that they are copies.
    ///
    /// # Errors
    /// Returns an error if the server does not start.
    pub fn restart_with_files(&mut self, files: &[(PathBuf, Vec<u8>)]) -> Result<()> {
        self.kill();
        for (path, content) in files {
            fs::write(path, content).context("put a copy of the state back")?;
        }
        self.spawn(false)
    }

    /// Kills the server, and puts an older copy in the place of its state file. The server refuses
    /// to start with it. Then the file is moved away, as the server advises, and the server starts.
    ///
    /// # Errors
    /// Returns an error if the server starts with the older copy, or does not start without it.
    pub fn roll_back(&mut self) -> Result<()> {
        let path = self.state_path();
        let older = fs::read(&path).context("the state file")?;
        self.restart()?;
        self.kill();
        fs::write(&path, older).context("put the older copy back")?;
        let mut refused = self.launch(false)?;
        let code = refused.wait(SOON)?.code();
        let output = refused.output();
        ensure!(
            code == Some(CONFIG) && output.contains("older copy"),
            "{code:?}: {output}"
        );
        fs::remove_file(&path).context("move the state file away")?;
        self.spawn(false)
    }
}
