//! Access to a server: its addresses, URLs and commands.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex},
};

use anyhow::{Context as _, Result};

use crate::servers::{
    isolation::Password,
    redis::{credentials::credentials, monitor::RedisMonitor, resp::Resp, server::RedisServer},
};

impl RedisServer {
    /// Its port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Where clients connect that speak TLS, if they may.
    pub(super) fn clients_port(&self) -> u16 {
        let mut settings = self.config.iter();
        let port = settings.find_map(|line| line.strip_prefix("tls-port ")?.parse().ok());
        port.unwrap_or(self.port)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its folder: the append-only file is in it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The password of its default user; empty when it has none.
    #[must_use]
    pub fn password(&self) -> &str {
        self.password.as_ref().map_or("", Password::expose)
    }

    /// `redis://:PASSWORD@127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// As [`RedisServer::url`], where something else listens that leads there.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("redis://{}{address}", credentials(self.password.as_ref()))
    }

    /// Runs a command on it, and gives back its reply as text: the items of an array on lines of their own, an error with
    /// its code.
    ///
    /// # Errors
    /// When the server cannot be asked, or stays silent for 5 s.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        self.connect()?.ask(arguments)
    }

    pub(super) fn connect(&self) -> Result<Resp> {
        let mut resp = Resp::connect(self.address())?;
        if let Some(password) = &self.password {
            // A test may have changed it: the next answer says so.
            resp.ask(&["AUTH", password.expose()])?;
        }
        Ok(resp)
    }

    /// As [`RedisServer::command`], by a user with a password.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn command_as(&self, user: &str, password: &str, arguments: &[&str]) -> Result<String> {
        let mut resp = Resp::connect(self.address())?;
        resp.ask(&["AUTH", user, password])?;
        resp.ask(arguments)
    }

    /// Starts to watch what clients send.
    ///
    /// # Errors
    /// When the server cannot be asked.
    pub fn monitor(&self) -> Result<RedisMonitor> {
        let mut resp = self.connect()?;
        resp.ask(&["MONITOR"])?;
        let lines = Arc::<Mutex<Vec<String>>>::default();
        resp.listen(Arc::clone(&lines))?;
        Ok(RedisMonitor(lines))
    }

    /// One line of `INFO`.
    ///
    /// # Errors
    /// When the server cannot be asked or does not say it.
    pub fn info(&self, field: &str) -> Result<String> {
        let info = self.command(&["INFO"])?;
        let value = info
            .lines()
            .find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'));
        Ok(value
            .with_context(|| format!("INFO has no {field}"))?
            .to_owned())
    }

    /// How often it has carried out a command since it started, or since `CONFIG RESETSTAT`: what scripts do counts.
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
