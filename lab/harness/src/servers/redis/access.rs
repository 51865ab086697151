//! Access to a server: its addresses, URLs and commands.
//!
//! Writes passwords into settings and URLs.
//!
//! Starts the members of a group of servers, and lists their addresses.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, Result};
use distlock_core::sync::Mutex;

use crate::servers::{
    isolation::Password,
    redis::{
        resp::{RedisMonitor, Resp},
        server::{Flavour, RedisServer},
    },
};

impl RedisServer {
    /// Returns the server's port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port for clients with TLS. Without such a port, returns the other port.
    pub(super) fn client_port(&self) -> u16 {
        let mut settings = self.config.iter();
        let port = settings.find_map(|line| line.strip_prefix("tls-port ")?.parse().ok());
        port.unwrap_or(self.port)
    }

    /// Returns the address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the address for clients with TLS. Without such an address, returns the other one.
    #[must_use]
    pub fn tls_address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.client_port()).into()
    }

    /// Returns the server's folder, which contains the append-only file.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the password of the default user. The text is empty if there is no password.
    #[must_use]
    pub fn password(&self) -> &str {
        self.password.as_ref().map_or("", Password::expose)
    }

    /// Returns `redis://:PASSWORD@127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// Returns [`RedisServer::url`] with another address that leads to this server.
    #[must_use]
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!(
            "redis://{}{address}",
            url_credentials(self.password.as_ref())
        )
    }

    /// Runs a command, and returns its reply as text. The items of an array are on separate lines,
    /// and the text of an error begins with its code.
    ///
    /// # Errors
    /// Returns an error if the connection fails, or if the server does not answer within 5 s.
    pub fn command(&self, arguments: &[&str]) -> Result<String> {
        self.connect()?.ask(arguments)
    }

    /// Opens a connection, and logs in as the default user.
    pub(super) fn connect(&self) -> Result<Resp> {
        let mut resp = Resp::connect(self.address())?;
        if let Some(password) = &self.password {
            // A refused login is not reported here. A test may have changed the password, and then
            // the next command fails.
            resp.ask(&["AUTH", password.expose()])?;
        }
        Ok(resp)
    }

    /// Works like [`RedisServer::command`], as another user.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub fn command_as(&self, user: &str, password: &str, arguments: &[&str]) -> Result<String> {
        let mut resp = Resp::connect(self.address())?;
        resp.ask(&["AUTH", user, password])?;
        resp.ask(arguments)
    }

    /// Starts to record the commands that clients send.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub fn monitor(&self) -> Result<RedisMonitor> {
        let mut resp = self.connect()?;
        resp.ask(&["MONITOR"])?;
        let lines = Arc::<Mutex<Vec<String>>>::default();
        resp.collect_lines(Arc::clone(&lines))?;
        Ok(RedisMonitor(lines))
    }

    /// Returns the value of one field of `INFO`.
    ///
    /// # Errors
    /// Returns an error if the connection fails, or if the server has no such field.
    pub fn info(&self, field: &str) -> Result<String> {
        let info = self.command(&["INFO"])?;
        let value = info
            .lines()
            .find_map(|line| line.trim_end().strip_prefix(field)?.strip_prefix(':'));
        Ok(value
            .with_context(|| format!("INFO has no {field}"))?
            .to_owned())
    }

    /// Returns the number of times that the server has run a command since the server's start, or
    /// since `CONFIG RESETSTAT`. Commands inside scripts count.
    ///
    /// # Errors
    /// Returns an error if the connection fails.
    pub fn calls(&self, command: &str) -> Result<u64> {
        let stats = self.command(&["INFO", "commandstats"])?;
        // The line reads `cmdstat_get:calls=3,usec=20,..`.
        let prefix = format!("cmdstat_{command}:calls=");
        let Some(line) = stats.lines().find_map(|line| line.strip_prefix(&prefix)) else {
            return Ok(0);
        };
        let digits = line.split(',').next().unwrap_or_default();
        Ok(digits.parse()?)
    }
}

/// The name of the setting for a server's password. A test can choose a password by this setting.
pub(super) const PASSWORD: &str = "requirepass ";

/// Returns the part of a URL before the address, with the password. The text is empty if there is
/// no password.
pub(super) fn url_credentials(password: Option<&Password>) -> String {
    password.map_or_else(String::new, |it| format!(":{}@", it.expose()))
}

/// Returns the setting that gives a server this password.
pub(super) fn password_setting(password: &Password) -> String {
    format!("{PASSWORD}{}", password.expose())
}

/// Starts one member of a group. With certificates (`pki`) the member has a second port with TLS,
/// for clients and for the other members.
pub(super) fn start_member(
    flavour: Flavour,
    pki: Option<&Path>,
    arguments: &[&str],
    settings: &[&str],
) -> Result<RedisServer> {
    let among_them: &[&str] = match pki {
        Some(_) => &["tls-replication yes", "tls-cluster yes"],
        None => &[],
    };
    let settings = [settings, among_them].concat();
    RedisServer::start_with_tls(flavour, arguments, &settings, pki)
}

/// Returns the addresses of servers for clients, separated by commas.
pub(super) fn addresses<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> String {
    let addresses: Vec<_> = servers
        .into_iter()
        .map(|server| format!("127.0.0.1:{}", server.client_port()))
        .collect();
    addresses.join(",")
}
