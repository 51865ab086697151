//! Finds ports for private servers.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// A TCP port on the loopback address that nothing listens on.
///
/// Another process may take the port before the server does. The caller must notice that and ask
/// for another port. A server that can listen on port 0 and report its port should do that instead.
///
/// # Errors
/// When the system has no port left.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("ask for a free port")?;
    Ok(listener.local_addr()?.port())
}
