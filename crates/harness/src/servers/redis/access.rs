//! Access to a server: its addresses, URLs and commands.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result};

use crate::servers::{
    isolation::Password,
    redis::{credentials::url_credentials, monitor::RedisMonitor, resp::Resp, server::RedisServer},
};

impl RedisServer {
    /// The server's port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The port for clients with TLS if there is one, otherwise the port.
    pub(super) fn client_port(&self) -> u16 {
        let mut settings = self.config.iter();
        let port = settings.find_map(|line| line.strip_prefix("tls-port ")?.parse().ok());
        port.unwrap_or(self.port)
    }

    /// The address that the server listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The server's folder, which contains the append-only file.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The password of the default user; empty if there is none.
    #[must_use]
    pub fn password(&self) -> &str {
        self.password.as_ref().map_or("", Password::expose)
    }

    /// `redis://:PASSWORD@127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// As [`RedisServer::url`], at another address that leads to this server.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!(
            "redis://{}{address}",
            url_credentials(self.password.as_ref())
        )
    }

    /// Runs a command, and returns its reply as text: the items of an array on separate lines, an
    /// error with its code.
    ///
    /// # Errors
    /// When the server cannot be asked, or stays silent for 5 s.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        self.connect()?.ask(arguments)
    }

    /// Opens a connection, and logs in as the default user.
    pub(super) fn connect(&self) -> Result<Resp> {
        let mut resp = Resp::connect(self.address())?;
        if let Some(password) = &self.password {
            // An error is not reported here: a test may have changed the password, and then the
            // next command fails.
            resp.ask(&["AUTH", password.expose()])?;
        }
        Ok(resp)
    }

    /// As [`RedisServer::command`], as another user.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn command_as(&self, user: &str, password: &str, arguments: &[&str]) -> Result<String> {
        let mut resp = Resp::connect(self.address())?;
        resp.ask(&["AUTH", user, password])?;
        resp.ask(arguments)
    }

    /// Starts to record the commands that clients send.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn monitor(&self) -> Result<RedisMonitor> {
        let mut resp = self.connect()?;
        resp.ask(&["MONITOR"])?;
        let lines = Arc::<Mutex<Vec<String>>>::default();
        resp.collect_lines(Arc::clone(&lines))?;
        Ok(RedisMonitor(lines))
    }

    /// The value of one field of `INFO`.
    ///
    /// # Errors
    /// When the server cannot be asked, or has no such field.
    pub fn info(&self, field: &str) -> Result<String> {
        let info = self.command(&["INFO"])?;
        let value = info
            .lines()
            .find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'));
        Ok(value
            .with_context(|| format!("INFO has no {field}"))?
            .to_owned())
    }

    /// The number of times that the server has run a command since it started, or since `CONFIG
    /// RESETSTAT`. Commands of scripts count.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn calls(&self, command: &str) -> Result<u64> {
        let stats = self.command(&["INFO", "commandstats"])?;
        // `cmdstat_get:calls=3,usec=20,..`
        let prefix = format!("cmdstat_{command}:calls=");
        let Some(line) = stats.lines().find_map(|line| line.strip_prefix(&prefix)) else {
            return Ok(0);
        };
        let digits = line.split(',').next().unwrap_or_default();
        Ok(digits.parse()?)
    }
}
