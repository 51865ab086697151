//! Private Redis and Valkey servers: single ones, a primary with replica and sentinels, and
//! clusters.

mod access;
mod cluster;
mod resp;
mod sentinels;
mod server;
#[cfg(test)]
mod tests;

pub use self::{
    cluster::RedisCluster, resp::RedisMonitor, sentinels::RedisSentinels, server::Flavour,
    server::RedisServer,
};
