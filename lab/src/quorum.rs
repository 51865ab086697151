//! Redis servers that are the members of a quorum, and the loss of one of them.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use distlock::{Registry, backend::percent_encode};
use distlock_harness::{Signal, servers::redis::RedisServer};

/// The member that a quorum lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    None,
    /// A member was killed: it refuses connections.
    Dead,
    /// A member is stopped: it keeps its connections, accepts new ones, and answers nothing.
    Silent,
}

impl Lost {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Dead, Self::Silent];

    /// The end of a key that names a quorum with this loss.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Dead => "-dead",
            Self::Silent => "-silent",
        }
    }
}

/// The servers of one quorum.
#[derive(Debug)]
pub(crate) struct QuorumServers(Vec<RedisServer>);

impl QuorumServers {
    /// Starts this many servers. The function blocks.
    pub(crate) fn start(members: usize, settings: &[&str]) -> Result<Self> {
        let servers = (0..members).map(|_| RedisServer::with(settings));
        Ok(Self(servers.collect::<Result<_>>()?))
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().map(RedisServer::address)
    }

    /// The URL of the quorum.
    pub(crate) fn url(&self) -> String {
        self.url_at(self.addresses())
    }

    /// The URL of the quorum, with other addresses that lead to the servers.
    pub(crate) fn url_at(&self, addresses: impl Iterator<Item = SocketAddr>) -> String {
        let members = "abcdefg".chars().zip(&self.0).zip(addresses);
        let members = members.map(|((name, server), address)| {
            format!("member={name}={}", percent_encode(&server.url_at(address)))
        });
        format!("quorum:?{}", members.collect::<Vec<_>>().join("&"))
    }

    /// Says that the quorum has granted nothing so far, so that its members vote at once.
    pub(crate) async fn init(url: &str) -> distlock::Result<()> {
        let registry = Registry::builtin();
        distlock::quorum::init(url, registry.drivers(), false).await?;
        Ok(())
    }

    /// Loses the last member.
    pub(crate) fn lose(&mut self, lost: Lost) -> Result<()> {
        let last = self.0.last_mut().context("a member")?;
        match lost {
            Lost::None => Ok(()),
            Lost::Dead => {
                last.kill();
                Ok(())
            }
            Lost::Silent => last.signal(Signal::STOP),
        }
    }
}
