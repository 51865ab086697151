//! Access to an ensemble: the addresses of its servers, and requests that need no session.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use anyhow::{Context as _, Result};

use crate::servers::zookeeper::ensemble::{ANSWER_LIMIT, USER, ZooKeeper};

impl ZooKeeper {
    /// Returns `user:password@host:port,host:port,..`, in the form of a URL. An ensemble that is
    /// open to everybody has no user.
    #[must_use]
    pub fn servers(&self) -> String {
        let all: Vec<_> = (0..self.members.len()).map(|at| self.address(at)).collect();
        self.reached_at(&all)
    }

    /// Returns [`ZooKeeper::servers`] with only one of the servers.
    #[must_use]
    pub fn server(&self, at: usize) -> String {
        self.reached_at(&[self.address(at)])
    }

    /// Returns [`ZooKeeper::servers`] with these addresses in place of the servers' own addresses,
    /// for example with the addresses of proxies.
    #[must_use]
    pub fn reached_at(&self, addresses: &[SocketAddr]) -> String {
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        let hosts = addresses.join(",");
        if self.setup.open {
            hosts
        } else {
            format!("{}@{hosts}", self.user_and_password())
        }
    }

    /// Returns `user:password` of the ensemble's user.
    pub(super) fn user_and_password(&self) -> String {
        format!("{USER}:{}", self.password.expose())
    }

    /// Returns the number of servers, running or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Always returns false, because an ensemble has servers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the address of a server for clients.
    #[must_use]
    pub fn address(&self, at: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.members[at].ports.client).into()
    }

    /// Returns the index of the leader.
    ///
    /// # Errors
    /// Returns an error if no server leads.
    pub fn leader(&self) -> Result<usize> {
        (0..self.members.len())
            .find(|&at| {
                self.mode(at)
                    .is_some_and(|mode| mode == "leader" || mode == "standalone")
            })
            .context("no server leads")
    }

    /// Returns the indices of the followers.
    #[must_use]
    pub fn followers(&self) -> Vec<usize> {
        (0..self.members.len())
            .filter(|&at| self.mode(at).is_some_and(|mode| mode == "follower"))
            .collect()
    }

    /// Sends a four-letter word to a server, and returns the answer.
    ///
    /// # Errors
    /// Returns an error if the server does not answer.
    pub fn ask(&self, at: usize, word: &str) -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address(at), ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns the role that the server reports: `leader`, `follower` or `standalone`. `None` means
    /// that the server does not serve clients.
    #[must_use]
    pub fn mode(&self, at: usize) -> Option<String> {
        self.members[at].process.as_ref()?;
        let answer = self.ask(at, "srvr").ok()?;
        let mode = answer
            .lines()
            .find_map(|line| line.strip_prefix("Mode: "))?;
        Some(mode.trim().to_owned())
    }
}
