//! Starts the members of a group of servers, and lists their addresses.

use std::path::Path;

use anyhow::Result;

use crate::servers::redis::{flavour::Flavour, server::RedisServer};

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
