//! Redis with a replica and sentinels.
//!
//! Clients learn the addresses of the servers from the sentinels, so no proxy can stand in front of
//! a server for one client alone.

use anyhow::Result;
use distlock_harness::servers::redis::{RedisSentinels, RedisServer};

use super::leader::{FormerLeader, LeaderRemoval, RemovedBy};

/// Two servers with data, at the indices 0 and 1, and three sentinels after them.
#[derive(Debug)]
pub(super) struct SentinelStore(Box<RedisSentinels>);

/// Number of servers with data.
const DATA_SERVERS: usize = 2;

impl SentinelStore {
    pub(super) fn start() -> Result<Self> {
        Ok(Self(Box::new(RedisSentinels::start()?)))
    }

    pub(super) fn url(&self) -> String {
        self.0.url()
    }

    /// Returns the number of all servers, sentinels included.
    pub(super) fn server_count(&self) -> usize {
        DATA_SERVERS + self.0.sentinels.len()
    }

    /// Returns the servers that keep data.
    pub(super) fn data_servers(&self) -> [&RedisServer; DATA_SERVERS] {
        [&self.0.primary, &self.0.replica]
    }

    pub(super) fn server(&self, at: usize) -> &RedisServer {
        match at {
            0 => &self.0.primary,
            1 => &self.0.replica,
            _ => &self.0.sentinels[at - DATA_SERVERS],
        }
    }

    pub(super) fn server_mut(&mut self, at: usize) -> &mut RedisServer {
        match at {
            0 => &mut self.0.primary,
            1 => &mut self.0.replica,
            _ => &mut self.0.sentinels[at - DATA_SERVERS],
        }
    }

    /// Returns the index of the server that all sentinels name.
    fn primary(&self) -> Option<usize> {
        let mut named = (0..self.0.sentinels.len()).map(|at| self.0.primary_port_at(at).ok());
        let first = named.next()??;
        named.all(|it| it == Some(first)).then_some(())?;
        self.data_servers().iter().position(|it| it.port() == first)
    }

    /// Tells whether all sentinels name this server as the primary.
    pub(super) fn leads(&self, at: usize) -> bool {
        at < DATA_SERVERS && self.primary() == Some(at)
    }

    /// Cuts the primary off, orders a failover, or kills the primary. `None` means that no primary
    /// is agreed, or that the sentinel refuses.
    pub(super) fn remove_leader(
        &mut self,
        how: LeaderRemoval,
        pick: usize,
    ) -> Result<Option<FormerLeader>> {
        let Some(at) = self.primary() else {
            return Ok(None);
        };
        let next = 1 - at;
        let how = match how {
            LeaderRemoval::CutOff => {
                self.0.cut_off(self.server(at), self.server(next))?;
                RemovedBy::CutOff
            }
            LeaderRemoval::FailOver if pick.is_multiple_of(2) => {
                let ask = ["SENTINEL", "FAILOVER", RedisSentinels::PRIMARY];
                let asked = &self.0.sentinels[pick / 2 % self.0.sentinels.len()];
                if asked.command(&ask)? != "OK" {
                    return Ok(None);
                }
                RemovedBy::Command
            }
            LeaderRemoval::FailOver | LeaderRemoval::Kill => {
                self.server_mut(at).kill();
                RemovedBy::Killed
            }
        };
        Ok(Some(FormerLeader { at, next, how }))
    }

    /// Tells whether a majority of sentinels names the other server, and that server is a primary.
    pub(super) fn is_replaced(&self, FormerLeader { next, .. }: FormerLeader) -> bool {
        let port = self.server(next).port();
        let sentinels = 0..self.0.sentinels.len();
        let majority = sentinels.len() / 2 + 1;
        let named = sentinels.filter(|at| self.0.primary_port_at(*at).is_ok_and(|it| it == port));
        named.count() >= majority && info_is(self.server(next), "role", "master")
    }

    /// Restarts a killed server, or connects a cut-off server with the other servers again. A
    /// server that was replaced by an ordered failover rejoins by itself.
    pub(super) fn rejoin(&mut self, FormerLeader { at, next, how }: FormerLeader) -> Result<()> {
        match how {
            RemovedBy::Command => Ok(()),
            RemovedBy::Killed => self.server_mut(at).restart(),
            RemovedBy::CutOff => self.0.reconnect(self.server(at), self.server(next)),
        }
    }

    /// Tells whether all sentinels know each other and name one primary, and the replica copies
    /// that primary.
    pub(super) fn is_settled(&self) -> bool {
        let Some(at) = self.primary() else {
            return false;
        };
        let (primary, replica) = (self.server(at), self.server(1 - at));
        info_is(primary, "role", "master")
            && info_is(replica, "role", "slave")
            && info_is(replica, "master_link_status", "up")
            && self.0.sentinels.iter().all(sees_all)
    }
}

/// Tells whether a field of `INFO` has this value.
fn info_is(server: &RedisServer, field: &str, value: &str) -> bool {
    server.info(field).is_ok_and(|it| it == value)
}

/// Tells whether a sentinel sees a healthy primary, one replica and two other sentinels.
fn sees_all(sentinel: &RedisServer) -> bool {
    let says = |about: &str, wanted: &[(&str, &str)]| {
        let said = sentinel.command(&["SENTINEL", about, RedisSentinels::PRIMARY]);
        said.is_ok_and(|said| {
            // Each field is followed by its value.
            let words: Vec<_> = said.lines().collect();
            let pairs = words.chunks_exact(2).map(|pair| (pair[0], pair[1]));
            wanted
                .iter()
                .all(|it| pairs.clone().any(|pair| pair == *it))
        })
    };
    let primary = [
        ("flags", "master"),
        ("num-slaves", "1"),
        ("num-other-sentinels", "2"),
    ];
    // Sentinels refresh the state of a replica rarely, so `is_settled` asks the replica itself
    // whether it copies the primary.
    says("MASTER", &primary) && says("REPLICAS", &[("flags", "slave")])
}
