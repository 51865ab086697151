//! Access to a server: its addresses, URLs and statements.
//!
//! Computes the form in which the server stores a password, so that the password itself is never
//! sent.

use std::{
    env,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    sync::atomic::Ordering,
};

use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::{
    Process,
    servers::{
        isolation::Password,
        postgres::{
            installation::{DATABASE, binaries_folder},
            server::{PostgresServer, READY_LIMIT},
        },
    },
};

impl PostgresServer {
    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the folder of the server's data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns the URL of the first database.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// Returns the URL of any database.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://{}/{database}", self.account_at(self.address()))
    }

    /// Returns [`PostgresServer::url`] with another address that leads to this server.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("postgres://{}/{DATABASE}", self.account_at(address))
    }

    /// Returns [`PostgresServer::url`] for another user. The password must be percent-encoded.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        let address = self.address();
        format!("postgres://{user}:{password}@{address}/{DATABASE}")
    }

    /// Returns `postgres:PASSWORD@ADDRESS`, in the form of a URL.
    pub(super) fn account_at(&self, address: SocketAddr) -> String {
        format!("postgres:{}@{address}", self.password.expose())
    }

    /// Returns the password of `postgres`.
    pub(in crate::servers) const fn password(&self) -> &Password {
        &self.password
    }

    /// Creates an empty database and returns its name.
    ///
    /// # Errors
    /// Returns an error if the server does not answer.
    pub fn new_database(&self) -> Result<String> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("{DATABASE}_{number}");
        self.sql(&format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Runs statements in one transaction as `postgres`, and returns their output, with columns
    /// separated by tabs.
    ///
    /// # Errors
    /// Returns an error if a statement fails. The error contains the server's message.
    pub fn sql(&self, statements: &str) -> Result<String> {
        self.sql_in(DATABASE, statements)
    }

    /// Works like [`PostgresServer::sql`], in another database.
    ///
    /// # Errors
    /// Returns an error for the same reasons as [`PostgresServer::sql`].
    pub fn sql_in(&self, database: &str, statements: &str) -> Result<String> {
        let output = self
            .client(database)?
            .args(["-c", statements])
            .output()
            .context("psql")?;
        if !output.status.success() {
            bail!("{statements}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }

    /// Runs statements in a transaction that stays open until the value is dropped. Until then the
    /// transaction keeps the locks of the statements.
    ///
    /// # Errors
    /// Returns an error if the server does not carry out the statements soon.
    pub fn hold_open(&self, statements: &str) -> Result<Process> {
        let process = Process::spawn(self.client(DATABASE)?.args([
            "-c",
            "BEGIN",
            "-c",
            statements,
            "-c",
            "SELECT 'held open'",
            "-c",
            "SELECT pg_sleep(600)",
        ]))?;
        process.wait_for_line(READY_LIMIT, |line| line.contains("held open"))?;
        Ok(process)
    }

    /// Returns a command for `psql`, which connects through the socket as `postgres`. The command
    /// has no environment variable that would change the server or the user.
    pub(super) fn client(&self, database: &str) -> Result<Command> {
        let mut command = Command::new(binaries_folder()?.join("psql"));
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command
            .args(["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1"])
            .args(["-U", "postgres", "-d", database])
            .arg("-h")
            .arg(self.folder.path())
            .args(["-p", &self.port.to_string()]);
        Ok(command)
    }
}

/// Returns the form in which the server stores a password, in the notation of RFC 5803. The form
/// has one round of hashing instead of the server's default of 4,096. More rounds make guessing
/// slower, and a random password cannot be guessed anyway. With 4,096 rounds, each connection of an
/// unoptimised client would take a tenth of a second longer.
pub(super) fn scram_verifier(password: &Password) -> String {
    let salt = Uuid::new_v4().into_bytes();
    let salted = hmac(
        password.expose().as_bytes(),
        &[&salt[..], &[0, 0, 0, 1]].concat(),
    );
    let stored = Sha256::digest(hmac(&salted, b"Client Key"));
    let server = hmac(&salted, b"Server Key");
    let [salt, stored, server] =
        [&salt[..], &stored[..], &server[..]].map(|it| STANDARD.encode(it));
    format!("SCRAM-SHA-256$1:{salt}${stored}:{server}")
}

/// HMAC-SHA-256 (RFC 2104), for a key that is no longer than a block.
pub(super) fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let padded = |with: u8| -> Vec<u8> {
        let key = key.iter().copied().chain(std::iter::repeat(0)).take(64);
        key.map(|byte| byte ^ with).collect()
    };
    let inner = Sha256::digest([padded(0x36), text.to_vec()].concat());
    Sha256::digest([padded(0x5c), inner.to_vec()].concat()).into()
}
