//! Redis and Valkey: one server, or several that belong together.

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
