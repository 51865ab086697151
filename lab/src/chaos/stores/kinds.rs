//! The kinds of stores, and the times that each needs.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Which store.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StoreKind {
    Memory,
    Sqlite,
    Redis,
    RedisSentinel,
    RedisCluster,
    Mariadb,
    Mysql,
    Postgres,
    Zookeeper,
}

impl StoreKind {
    /// Its name on the command line.
    pub(crate) fn key(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// Shortest and longest TTL of a run, in milliseconds, unless told otherwise. Where another
    /// server can take over, some leases last as long as that takes.
    pub(crate) const fn ttl_ms(self) -> (u64, u64) {
        match self {
            Self::Memory | Self::Sqlite => (300, 900),
            Self::Zookeeper | Self::RedisSentinel | Self::RedisCluster => (2_000, 4_000),
            _ => (1_000, 3_000),
        }
    }

    /// Longest time that a lock is held on purpose, in milliseconds. Where another server can take
    /// over, a hold must outlast that: otherwise it never meets both servers.
    pub(crate) const fn longest_hold_ms(self) -> u64 {
        match self {
            Self::Zookeeper | Self::RedisSentinel | Self::RedisCluster => 20_000,
            _ => self.ttl_ms().1 * 3,
        }
    }

    /// How much longer than a TTL two guards of one lock may be valid after a failover, in
    /// milliseconds: `cluster-node-timeout` of a cluster, as documented.
    pub(crate) const fn failover_ms(self) -> u64 {
        match self {
            Self::RedisCluster => 3_000,
            _ => 0,
        }
    }

    /// Whether clients reach its servers by addresses that the servers tell them, so that no proxy
    /// can stand in front of a server for one client alone.
    pub(crate) const fn tells_addresses(self) -> bool {
        matches!(self, Self::RedisSentinel | Self::RedisCluster)
    }
}
