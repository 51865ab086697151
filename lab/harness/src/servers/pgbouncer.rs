//! PgBouncer, a connection pooler in front of PostgreSQL.

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{
    Process, free_port,
    servers::postgres::{PostgresServer, READY_LIMIT, server_user},
};

/// The program of the Debian package.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Time for which the pooler lends a session of the server to one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// Until the client disconnects.
    Session,
    /// Until the client's transaction ends.
    Transaction,
}

/// A private pooler with default settings. Dropping the value kills the pooler.
#[derive(Debug)]
pub struct PgBouncer {
    _process: Process,
    _folder: TempDir,
    address: SocketAddr,
    url: String,
}

impl PgBouncer {
    /// Starts a pooler in front of this server. Only the user `postgres` can use it, with the
    /// server's password.
    ///
    /// # Errors
    /// Returns an error if PgBouncer is not installed or does not start.
    pub fn start(server: &PostgresServer, mode: PoolMode) -> Result<Self> {
        let mut last = None;
        for _ in 0..3 {
            // Another process may take the port before the pooler does.
            match Self::try_start(server, mode, free_port()?) {
                Ok(pooler) => return Ok(pooler),
                Err(error) => last = Some(error),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    fn try_start(server: &PostgresServer, mode: PoolMode, port: u16) -> Result<Self> {
        ensure!(
            Path::new(PROGRAM).exists(),
            "{PROGRAM} (Debian: apt-get install pgbouncer)"
        );
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let user = server_user()?;
        let folder = user.create_folder(&env::temp_dir())?;
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let users = folder.path().join("users");
        let known = format!("\"postgres\" \"{}\"\n", server.password().expose());
        user.write_private_file(&users, known)?;
        let file = folder.path().join("pgbouncer.ini");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\n\
             auth_file = {}\npool_mode = {mode}\n",
            server.address().port(),
            users.display(),
        );
        user.write_private_file(&file, settings)?;
        let mut command = user.command(PROGRAM);
        command.arg(&file);
        let mut process = Process::spawn(&mut command)?;
        process.wait_for_line(READY_LIMIT, |line| {
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
            address,
            url: server.url_at(address),
        })
    }

    /// Returns the URL of the server's first database, through the pooler.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Returns the address on which the pooler listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{isolation::tests::assert_isolated, postgres::tests::assert_strangers_refused},
        *,
    };

    #[test]
    fn no_other_user_of_this_host_can_use_a_pooler() {
        let server = PostgresServer::start().unwrap();
        let pooler = PgBouncer::start(&server, PoolMode::Transaction).unwrap();
        assert_strangers_refused(pooler.address().port(), "authentication failed");
        let PgBouncer {
            _process: process,
            _folder: folder,
            ..
        } = &pooler;
        assert_isolated(process, folder.path(), server.password().expose());
    }
}
