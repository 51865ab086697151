//! Options of a Redis store.

mod address;
mod options;

pub use self::options::{Endpoint, RedisConfig, Secret, Tls, Topology};
