//! Real servers on free ports. Each server has its own folder, and the folder is removed with the
//! server.
//!
//! No other user of this host can use the servers. Each server requires a random password over TCP,
//! only the server's user can enter the folder, no command line contains a secret, and no server
//! runs as root. Only Prometheus tells everybody the figures that it has scraped.

mod isolation;
pub mod lock_server;
pub mod mysql;
pub mod pgbouncer;
pub mod postgres;
pub mod prometheus;
pub mod redis;
mod stepped_clock;
mod template;
pub mod web_proxy;
pub mod zookeeper;

pub use template::cache_folder;
