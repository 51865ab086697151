//! Options of a Redis store: parsed from a URL or set by code, and checked once.
//!
//! Errors name the option and the remedy, and never show a password.

mod address;
mod endpoint;
mod options;
#[cfg(test)]
mod tests;

pub use self::{
    endpoint::{Endpoint, Tls, Topology},
    options::RedisConfig,
};
