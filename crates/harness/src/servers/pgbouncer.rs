//! PgBouncer, a pooler in front of PostgreSQL.

use std::{env, fs, os::unix::process::CommandExt as _, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::postgres::{PostgresServer, folder, unprivileged};
use crate::{Process, free_port};

/// Where the Debian package has it.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// For how long a client keeps a session of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// Until it disconnects.
    Session,
    /// Until its transaction ends.
    Transaction,
}

/// A private pooler with the settings that it comes with. It is killed when it is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    _process: Process,
    _folder: TempDir,
    port: u16,
}

impl PgBouncer {
    /// Starts one. Everybody may connect and is `postgres` on the server.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(server: &PostgresServer, mode: PoolMode) -> Result<Self> {
        let mut last = None;
        for _ in 0..3 {
            // Somebody else may take the port first.
            match Self::launch(server, mode, free_port()?) {
                Ok(pooler) => return Ok(pooler),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    fn launch(server: &PostgresServer, mode: PoolMode, port: u16) -> Result<Self> {
        ensure!(
            Path::new(PROGRAM).exists(),
            "{PROGRAM} (Debian: apt-get install pgbouncer)"
        );
        let folder = folder(&env::temp_dir())?;
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let file = folder.path().join("pgbouncer.ini");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = {mode}\n",
            server.address().port()
        );
        fs::write(&file, settings)?;
        let mut command = Command::new(PROGRAM);
        command.arg(&file).current_dir("/");
        // It refuses to run as root.
        if let Some((user, group)) = unprivileged()? {
            command.uid(user).gid(group);
        }
        let mut process = Process::spawn(&mut command)?;
        process.wait_for_line(super::postgres::READY, |line| {
            line.contains("process up") || line.contains("FATAL")
        })?;
        ensure!(
            process.output().contains("process up") && process.is_running()?,
            "the pooler did not start: {}",
            process.output()
        );
        Ok(Self {
            _process: process,
            _folder: folder,
            port,
        })
    }

    /// Of the database that the server has from the start.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/distlock", self.port)
    }
}
