//! Access to an ensemble: the addresses of its servers, and requests that need no session.
//!
//! Reads and removes nodes and sessions of an ensemble, like an administrator.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

use anyhow::{Context as _, Result};

use crate::servers::zookeeper::{
    ensemble::{ANSWER_LIMIT, USER, ZooKeeper},
    session::{Owner, Session},
};

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

impl ZooKeeper {
    /// Returns the names of a node's children, sorted by name.
    ///
    /// # Errors
    /// Returns an error if the leader does not answer, or if there is no such node.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        let mut names = self.ask_leader(|session| session.children(path))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Removes a node.
    ///
    /// # Errors
    /// Returns an error if the leader does not answer, or if there is no such node.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.ask_leader(|session| session.delete(path))
    }

    /// Returns the session that owns an ephemeral node.
    ///
    /// # Errors
    /// Returns an error if the leader does not answer, or if there is no such node.
    pub fn owner(&self, path: &str) -> Result<Owner> {
        self.ask_leader(|session| session.owner(path))
    }

    /// Ends a client's session at once, and with the session its ephemeral nodes. For that, the
    /// function connects with the session's id and password. The password can be computed from the
    /// id.
    ///
    /// # Errors
    /// Returns an error if the leader does not answer, or if the session has ended.
    pub fn end_session(&self, id: i64) -> Result<()> {
        Session::take_over(self.address(self.leader()?), id)?.end();
        Ok(())
    }

    /// Opens a session with the leader for one request, with the rights of the ensemble's user.
    fn ask_leader<T>(&self, ask: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let mut session = Session::connect(self.address(self.leader()?))?;
        if !self.setup.open {
            session.authenticate(&self.user_and_password())?;
        }
        let answer = ask(&mut session);
        session.end();
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_session_loses_its_ephemeral_nodes() {
        let ensemble = ZooKeeper::start().unwrap();
        let mut ours = Session::connect(ensemble.address(0)).unwrap();
        ours.authenticate(&ensemble.user_and_password()).unwrap();
        // The nodes belong to the user of this session. The second node is ephemeral.
        let rights = b"\0\0\0\x01\0\0\0\x1f\0\0\0\x04auth\0\0\0\0";
        for (path, kind) in [("/stays", 0_u8), ("/ends", 1)] {
            let mut more = vec![0; 4];
            more.extend_from_slice(rights);
            more.extend_from_slice(&[0, 0, 0, kind]);
            ours.attempt(1, path, &more).unwrap();
        }
        assert_eq!(ensemble.owner("/stays").unwrap().session, 0);
        let id = ensemble.owner("/ends").unwrap().session;
        assert_ne!(id, 0);
        ensemble.end_session(id).unwrap();
        assert_eq!(ensemble.children("/").unwrap(), ["stays", "zookeeper"]);
        assert!(ensemble.end_session(id).is_err(), "it has ended");
        ensemble.remove("/stays").unwrap();
        assert_eq!(ensemble.children("/").unwrap(), ["zookeeper"]);
    }
}
