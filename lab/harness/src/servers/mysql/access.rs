//! Access to a server: its addresses, URLs and statements.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Command,
    sync::atomic::Ordering,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    Process,
    servers::{
        mysql::{
            installation::{DATABASE, Product},
            server::{MySqlServer, READY_LIMIT},
        },
        template::run_to_end,
    },
};

impl MySqlServer {
    /// Logs a user in over TCP once, with TLS if the server has TLS. MySQL accepts a password
    /// without TLS only after such a login. MariaDB needs no such login, so the function does
    /// nothing there.
    pub(super) fn log_in(&self, user: &str) -> Result<()> {
        if self.product == Product::MariaDb {
            return Ok(());
        }
        run_to_end(
            Command::new("mariadb")
                .env("MYSQL_PWD", self.password())
                .args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1"])
                .arg(format!("--user={user}"))
                .arg(format!("--port={}", self.port))
                .args(["--execute", "DO 1"]),
        )
    }

    /// Returns the product.
    #[must_use]
    pub const fn product(&self) -> Product {
        self.product
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the path of the server's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// Returns the folder of the server's data. MySQL writes its own certificates into this folder.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns the URL of the first database, without TLS.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// Returns the URL of any database, without TLS.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        let at = self.account_at(self.address());
        format!("mysql://{at}/{database}?ssl-mode=disabled")
    }

    /// Returns [`MySqlServer::url`] with another address that leads to this server.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        let at = self.account_at(address);
        format!("mysql://{at}/{DATABASE}?ssl-mode=disabled")
    }

    /// Returns [`MySqlServer::url`] for another user, who must have the same password as `root`.
    ///
    /// # Errors
    /// Returns an error if the server refuses that user.
    pub fn url_as(&self, user: &str) -> Result<String> {
        self.log_in(user)?;
        Ok(self.url().replace("://root:", &format!("://{user}:")))
    }

    /// Returns the password of `root`.
    #[must_use]
    pub fn password(&self) -> &str {
        self.password.expose()
    }

    /// Returns `root:PASSWORD@ADDRESS`, for a URL with other options.
    #[must_use]
    pub fn account_at(&self, address: SocketAddr) -> String {
        format!("root:{}@{address}", self.password.expose())
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

    /// Runs statements as `root`, and returns their output, with columns separated by tabs.
    ///
    /// # Errors
    /// Returns an error if a statement fails. The error contains the server's message.
    pub fn sql(&self, statements: &str) -> Result<String> {
        let output = self
            .client()
            .arg("--execute")
            .arg(statements)
            .output()
            .context("the mariadb client (Debian: apt-get install mariadb-client)")?;
        if !output.status.success() {
            bail!("{statements}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }

    /// Runs statements in a session that stays open until the value is dropped. Until then the
    /// session keeps the locks of the statements.
    ///
    /// # Errors
    /// Returns an error if the server does not carry out the statements soon.
    pub fn hold_open(&self, statements: &str) -> Result<Process> {
        // The client sleeps instead of the server, because a sleeping server does not notice the
        // end of its client.
        let process = Process::spawn(self.client().arg("--unbuffered").args([
            "--execute",
            &format!("{statements}; SELECT 'held open';\n\\! sleep 600"),
        ]))?;
        process.wait_for_line(READY_LIMIT, |line| line.contains("held open"))?;
        Ok(process)
    }

    /// Returns a command for the client program, which connects through the socket as `root`.
    pub(super) fn client(&self) -> Command {
        let mut command = Command::new("mariadb");
        command
            // Every user can read the arguments of a process. Only the user of the process can read
            // its environment.
            .env("MYSQL_PWD", self.password.expose())
            .args([
                "--no-defaults",
                "--user=root",
                "--batch",
                "--skip-column-names",
            ])
            .arg(format!("--socket={}", self.socket().display()))
            .arg(format!("--database={DATABASE}"));
        command
    }
}
