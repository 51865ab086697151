//! Finds ports for private servers.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// Returns a TCP port of the loopback address on which no process listens.
///
/// Another process may take the port before the server does. The caller must handle that failure
/// and request another port. A server that can listen on port 0 and report its port should do that
/// instead.
///
/// # Errors
/// Returns an error if the system has no port left.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("ask for a free port")?;
    Ok(listener.local_addr()?.port())
}
