//! Real servers on free ports, each with a folder of its own that goes away with it.
//!
//! No other user of this host can use them: each wants a random password over TCP, its folder lets
//! nobody else in, no command line holds a secret, and none runs as root.

mod isolation;
pub mod mysql;
pub mod pgbouncer;
pub mod postgres;
pub mod redis;
mod stepped_clock;
mod template;
pub mod zookeeper;

pub use template::cache;
