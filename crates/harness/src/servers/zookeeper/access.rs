//! Access to an ensemble: the addresses of its servers, and questions that need no session.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use anyhow::{Context as _, Result};

use crate::servers::zookeeper::ensemble::{ANSWER_LIMIT, USER, ZooKeeper};

impl ZooKeeper {
    /// `user:password@host:port,host:port,..`, as in a URL; without the user if the ensemble is
    /// open to everybody.
    #[must_use]
    pub fn servers(&self) -> String {
        let all: Vec<_> = (0..self.members.len()).map(|at| self.address(at)).collect();
        self.reached_at(&all)
    }

    /// As [`ZooKeeper::servers`], with one of the servers only.
    #[must_use]
    pub fn server(&self, at: usize) -> String {
        self.reached_at(&[self.address(at)])
    }

    /// As [`ZooKeeper::servers`], with these addresses in place of the servers' own. They may be
    /// those of proxies.
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

    /// `user:password` of the ensemble's user.
    pub(super) fn user_and_password(&self) -> String {
        format!("{USER}:{}", self.password.expose())
    }

    /// The number of servers, running or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Always false: an ensemble has servers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The address of a server for clients.
    #[must_use]
    pub fn address(&self, at: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.members[at].ports.client).into()
    }

    /// The server that leads.
    ///
    /// # Errors
    /// When none does.
    pub fn leader(&self) -> Result<usize> {
        (0..self.members.len())
            .find(|&at| {
                self.mode(at)
                    .is_some_and(|mode| mode == "leader" || mode == "standalone")
            })
            .context("no server leads")
    }

    /// The servers that follow.
    #[must_use]
    pub fn followers(&self) -> Vec<usize> {
        (0..self.members.len())
            .filter(|&at| self.mode(at).is_some_and(|mode| mode == "follower"))
            .collect()
    }

    /// Asks a server with a four-letter word.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn ask(&self, at: usize, word: &str) -> Result<String> {
        let mut stream = TcpStream::connect_timeout(&self.address(at), ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// The role that the server reports: `leader`, `follower` or `standalone`; `None` if it does
    /// not serve.
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
