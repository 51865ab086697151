//! Options of a Redis store.

mod address;
mod endpoint;
mod options;
#[cfg(test)]
mod tests;

pub use self::{
    endpoint::{Endpoint, Secret, Tls, Topology},
    options::RedisConfig,
};
