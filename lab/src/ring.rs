//! Redis servers that are a ring: its members, and the server with its view.

use std::net::SocketAddr;

use anyhow::Result;
use distlock::{
    Registry,
    backend::percent_encode,
    ring::{self, Terms},
};
use distlock_harness::servers::redis::RedisServer;

/// The servers of one ring.
#[derive(Debug)]
pub(crate) struct RingServers {
    view: RedisServer,
    pub(crate) members: Vec<RedisServer>,
}

impl RingServers {
    /// Starts a server for the view, and this many members with these settings. The function
    /// blocks.
    pub(crate) fn start(members: usize, settings: &[&str]) -> Result<Self> {
        let members = (0..members).map(|_| RedisServer::with(settings));
        Ok(Self {
            view: RedisServer::start()?,
            members: members.collect::<Result<_>>()?,
        })
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.members.iter().map(RedisServer::address)
    }

    /// The ids of the processes, the server with the view included.
    pub(crate) fn process_ids(&self) -> impl Iterator<Item = Option<u32>> {
        let servers = self.members.iter().chain([&self.view]);
        servers.map(RedisServer::id)
    }

    /// The URL of the ring.
    pub(crate) fn url(&self) -> String {
        self.url_at(self.addresses())
    }

    /// The URL of the ring of the members `a`, `b` and so on, at addresses that lead to them. With
    /// fewer addresses, the last members are left out.
    pub(crate) fn url_at(&self, addresses: impl Iterator<Item = SocketAddr>) -> String {
        let members = "abcdefg".chars().zip(&self.members).zip(addresses);
        let members = members.map(|((name, server), address)| {
            format!("&member={name}={}", percent_encode(&server.url_at(address)))
        });
        let view = percent_encode(&self.view.url());
        format!("ring:?records={view}{}", members.collect::<String>())
    }

    /// Makes the ring. Nobody has a lock at its members, so it grants at once.
    pub(crate) async fn init(url: &str, terms: Terms) -> distlock::Result<()> {
        let registry = Registry::builtin();
        ring::init(url, registry.drivers(), terms, true).await?;
        Ok(())
    }
}
