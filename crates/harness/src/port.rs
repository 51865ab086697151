//! Ports for private servers.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context as _, Result};

/// A TCP port on the loopback address that nothing listens on.
///
/// Somebody else may take it before the server does, so whoever starts a server on it must notice and ask again. A server
/// that can listen on port 0 and say which port it got is better off with that.
///
/// # Errors
/// When the system has no port left.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("ask for a free port")?;
    Ok(listener.local_addr()?.port())
}
