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
            installation::DATABASE,
            product::Product,
            server::{MySqlServer, READY_LIMIT},
        },
        template::run_to_end,
    },
};

impl MySqlServer {
    /// Logs a user in over TCP once, with TLS if the server has it. MySQL accepts a password
    /// without TLS only after such a login. MariaDB needs none, so nothing is done there.
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

    /// The product.
    #[must_use]
    pub const fn product(&self) -> Product {
        self.product
    }

    /// The address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The path of the server's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// The folder of the server's data. MySQL writes the certificates that it makes there.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The URL of the first database, without TLS.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of(DATABASE)
    }

    /// The URL of any database, without TLS.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        let at = self.account_at(self.address());
        format!("mysql://{at}/{database}?ssl-mode=disabled")
    }

    /// As [`MySqlServer::url`], at another address that leads to this server.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        let at = self.account_at(address);
        format!("mysql://{at}/{DATABASE}?ssl-mode=disabled")
    }

    /// As [`MySqlServer::url`], for another user, who must have the same password as `root`.
    ///
    /// # Errors
    /// When the server refuses that user.
    pub fn url_as(&self, user: &str) -> Result<String> {
        self.log_in(user)?;
        Ok(self.url().replace("://root:", &format!("://{user}:")))
    }

    /// The password of `root`.
    #[must_use]
    pub fn password(&self) -> &str {
        self.password.expose()
    }

    /// `root:PASSWORD@ADDRESS`, for a URL with other options.
    #[must_use]
    pub fn account_at(&self, address: SocketAddr) -> String {
        format!("root:{}@{address}", self.password.expose())
    }

    /// Makes an empty database and returns its name.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn new_database(&self) -> Result<String> {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("{DATABASE}_{number}");
        self.sql(&format!("CREATE DATABASE {name}"))?;
        Ok(name)
    }

    /// Runs statements as `root`, and returns their output, with columns separated by tabs.
    ///
    /// # Errors
    /// When one of them fails. The error contains the server's message.
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

    /// Runs statements in a session that stays open until the value is dropped, so that their locks
    /// stay.
    ///
    /// # Errors
    /// When they were not carried out soon.
    pub fn hold_open(&self, statements: &str) -> Result<Process> {
        // The client sleeps and not the server, because a sleeping server does not notice that its
        // client has gone.
        let process = Process::spawn(self.client().arg("--unbuffered").args([
            "--execute",
            &format!("{statements}; SELECT 'held open';\n\\! sleep 600"),
        ]))?;
        process.wait_for_line(READY_LIMIT, |line| line.contains("held open"))?;
        Ok(process)
    }

    /// A command for the client program, which connects through the socket as `root`.
    pub(super) fn client(&self) -> Command {
        let mut command = Command::new("mariadb");
        command
            // A process list shows arguments to every user, and the environment only to the
            // process's own user.
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
