//! The servers that a URL names: `h1:5432,[::1]:5433`.
//!
//! No error shows a part of the text, because a URL that lacks its `@` has a password there.

use std::fmt;

use distlock_backend_kit::{percent_decode, percent_encode};
use distlock_core::Result;

use super::values::invalid;

/// A server of a URL. At any time at most one server of a URL takes writes: the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerHost {
    /// A name or an address, without brackets.
    pub name: String,
    /// The TCP port.
    pub port: u16,
}

impl ServerHost {
    /// The server with this name or address, at this TCP port.
    pub fn new(name: impl Into<String>, port: u16) -> Self {
        Self {
            name: name.into(),
            port,
        }
    }

    /// Reads the list of servers of a URL, which separates them with commas.
    pub(super) fn list(authority: &str, default_port: u16) -> Result<Vec<Self>> {
        let servers = authority.split(',');
        servers.map(|it| Self::parse(it, default_port)).collect()
    }

    fn parse(server: &str, default_port: u16) -> Result<Self> {
        let (name, port) = if let Some(rest) = server.strip_prefix('[') {
            let (name, rest) = rest
                .split_once(']')
                .ok_or_else(|| invalid("the host of the URL has no closing bracket"))?;
            (name, rest.strip_prefix(':'))
        } else {
            match server.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (server, None),
            }
        };
        let name = percent_decode(name).ok_or_else(|| invalid("a part of the URL is not UTF-8"))?;
        let port = match port {
            Some(port) => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| invalid("the text after the host and its `:` is no TCP port"))?,
            None => default_port,
        };
        Ok(Self { name, port })
    }

    /// The server as a part of a URL.
    pub(super) fn in_url(&self, default_port: u16) -> String {
        let name = if self.name.contains(':') {
            format!("[{}]", self.name)
        } else {
            percent_encode(&self.name)
        };
        if self.port == default_port {
            name
        } else {
            format!("{name}:{}", self.port)
        }
    }
}

impl fmt::Display for ServerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}
