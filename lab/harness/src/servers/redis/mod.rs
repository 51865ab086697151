//! Private Redis and Valkey servers: single ones, a primary with replica and sentinels, and
//! clusters.

mod access;
mod cluster;
mod credentials;
mod flavour;
mod members;
mod monitor;
mod resp;
mod sentinels;
mod server;
#[cfg(test)]
mod tests;

pub use self::{
    cluster::RedisCluster, flavour::Flavour, monitor::RedisMonitor, sentinels::RedisSentinels,
    server::RedisServer,
};
