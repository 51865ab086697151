//! The real lock server, as a process.

use std::{
    ffi::OsString,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use distlock_harness::{FaultProxy, Process, Signal, distlock_binary, free_port};
use tempfile::TempDir;

use crate::client::SOON;

/// The longest lease of a server that crashes, and so the length of its recovery.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(4);

/// A lock server with locks in its memory. It keeps its port and its state from one start to the
/// next.
pub(crate) struct LockServer {
    folder: TempDir,
    port: u16,
    max_lease: Duration,
    process: Option<Process>,
}

impl LockServer {
    /// A server that has not been started yet.
    pub(crate) fn absent() -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            port: free_port()?,
            max_lease: Duration::from_secs(60),
            process: None,
        })
    }

    /// A new server.
    pub(crate) fn start() -> Result<Self> {
        let mut server = Self::absent()?;
        server.start_with(&["--init"])?;
        Ok(server)
    }

    /// A new server with leases of [`MAX_LEASE`] at most.
    pub(crate) fn start_brief() -> Result<Self> {
        let mut server = Self::absent()?;
        server.max_lease = MAX_LEASE;
        server.start_with(&["--init"])?;
        Ok(server)
    }

    /// A new server that asks for tokens. Returns the file with a token for names below `app/`.
    pub(crate) fn start_with_tokens() -> Result<(Self, PathBuf)> {
        let mut server = Self::absent()?;
        let (keys, token) = (
            server.folder.path().join("keys"),
            server.folder.path().join("token"),
        );
        fs::write(&keys, "0123456789abcdef0123456789abcdef\n")?;
        let keys = keys.to_str().context("a path of UTF-8")?;
        let minted = Command::new(distlock_binary()?)
            .args(["serve", "token", "--token-key", keys, "--prefix", "app/"])
            .args(["--operations", "acquire,release", "--ttl", "1h"])
            .output()?;
        ensure!(minted.status.success(), "{minted:?}");
        fs::write(&token, minted.stdout)?;
        server.start_with(&["--init", "--token-key", keys])?;
        Ok((server, token))
    }

    /// Starts the server again.
    pub(crate) fn start_again(&mut self) -> Result<()> {
        self.start_with(&[])
    }

    pub(crate) fn start_with(&mut self, options: &[&str]) -> Result<()> {
        let mut command = Command::new(distlock_binary()?);
        command
            .env("HOME", self.folder.path())
            .env("XDG_CONFIG_HOME", self.folder.path())
            .env("XDG_STATE_HOME", self.folder.path())
            .env_remove("DISTLOCK_BACKEND")
            .args(["serve", "--backend", "memory:", "--listen"])
            .arg(self.address().to_string())
            .arg("--state")
            .arg(self.folder.path().join("state"))
            .arg(format!("--max-lease={}s", self.max_lease.as_secs()))
            .args(options);
        let process = Process::spawn(&mut command)?;
        process.wait_for_line(SOON, |line| line.contains("\"event\":\"ready\""))?;
        self.process = Some(process);
        Ok(())
    }

    /// Ends the server in order.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the server runs")?;
        process.signal(Signal::TERM)?;
        let status = process.wait(SOON)?;
        ensure!(
            status.success(),
            "the server: {status}: {}",
            process.output()
        );
        Ok(())
    }

    /// Kills the server.
    pub(crate) fn crash(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the server runs")?;
        process.signal(Signal::KILL)?;
        process.wait(SOON)?;
        Ok(())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(crate) fn url(&self) -> String {
        format!("distlock://{}", self.address())
    }

    pub(crate) async fn proxy(&self) -> Result<FaultProxy> {
        FaultProxy::start(self.address()).await
    }
}

/// The URL of a server behind this proxy.
pub(crate) fn url_through(proxy: &FaultProxy) -> String {
    format!("distlock://{}", proxy.address())
}

/// A date that a test moves, for one process.
pub(crate) struct WallClock {
    library: PathBuf,
    folder: TempDir,
}

impl WallClock {
    pub(crate) fn new() -> Result<Self> {
        let folders = fs::read_dir("/usr/lib")?.filter_map(Result::ok);
        let mut found = folders.map(|it| it.path().join("faketime/libfaketimeMT.so.1"));
        let library = found.find(|it| it.exists());
        let clock = Self {
            library: library.context("libfaketime (Debian: apt-get install libfaketime)")?,
            folder: tempfile::tempdir()?,
        };
        clock.set(0)?;
        Ok(clock)
    }

    /// The environment variables of the process.
    pub(crate) fn variables(&self) -> [(OsString, OsString); 4] {
        [
            ("LD_PRELOAD", self.library.as_os_str().to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().into_os_string()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
        .map(|(name, value)| (name.into(), value))
    }

    /// Sets the date to that of the machine plus these seconds.
    pub(crate) fn set(&self, seconds: i64) -> Result<()> {
        // Renamed, so that the process never reads half of it.
        let new = self.folder.path().join("new");
        fs::write(&new, format!("{seconds:+}\n"))?;
        Ok(fs::rename(new, self.file())?)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }
}

/// Makes a file with this number.
pub(crate) fn write_number(path: &Path, number: u64) -> Result<()> {
    Ok(fs::write(path, number.to_string())?)
}
