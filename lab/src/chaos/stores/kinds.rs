//! The kinds of stores, with the times that each kind needs.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A kind of store.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StoreKind {
    Memory,
    Sqlite,
    Redis,
    RedisSentinel,
    RedisCluster,
    /// A quorum of five Redis servers, with its records in a file.
    Quorum,
    /// A ring of four Redis servers, with its view and its records in a fifth one.
    Ring,
    Mariadb,
    Mysql,
    Postgres,
    Zookeeper,
    /// A lock server with its locks in its memory.
    LockServer,
    /// Two agents of one Redis server.
    Agents,
}

impl StoreKind {
    /// Returns the name of the kind on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Returns the default of the shortest and longest TTL, in milliseconds. On stores with
    /// failover some leases last as long as a failover takes.
    pub(crate) const fn ttl_ms(self) -> (u64, u64) {
        match self {
            Self::Memory | Self::Sqlite => (300, 900),
            // The longest lease of the ring is as long.
            Self::Ring => (400, 1_000),
            Self::Zookeeper | Self::RedisSentinel | Self::RedisCluster => (2_000, 4_000),
            _ => (1_000, 3_000),
        }
    }

    /// Returns the longest time that a lock is held on purpose, in milliseconds. On stores with
    /// failover a hold must outlast the failover: otherwise no guard is valid under both servers.
    pub(crate) const fn longest_hold_ms(self) -> u64 {
        match self {
            Self::Zookeeper | Self::RedisSentinel | Self::RedisCluster => 20_000,
            _ => self.ttl_ms().1 * 3,
        }
    }

    /// Returns the number of worker processes, and of tasks of each. The clients of a quorum
    /// compete for votes, and a client is a process.
    pub(crate) const fn workers_and_tasks(self) -> (u32, u32) {
        match self {
            Self::Quorum => (8, 3),
            _ => (4, 6),
        }
    }

    /// Returns how much longer than a TTL two guards of one lock may be valid after a failover, in
    /// milliseconds. For a cluster, the documented time is its `cluster-node-timeout`.
    pub(crate) const fn failover_ms(self) -> u64 {
        match self {
            Self::RedisCluster => 3_000,
            _ => 0,
        }
    }

    /// Returns how long after a failover a client may still use the old primary for records, in
    /// milliseconds. With sentinels, the documented time is one second.
    pub(crate) const fn record_failover_ms(self) -> u64 {
        match self {
            Self::RedisSentinel => 1_000,
            _ => self.failover_ms(),
        }
    }

    /// Tells whether the servers tell clients their addresses. Then clients bypass a proxy, so no
    /// proxy can break the connections of one client alone.
    pub(crate) const fn announces_addresses(self) -> bool {
        matches!(self, Self::RedisSentinel | Self::RedisCluster)
    }
}
