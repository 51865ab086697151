//! The options of a store, each checked once, before anything is opened.
//!
//! This module holds the parts that several dialects share. The option names of each product are in
//! the product's own folder.

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod login;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod product;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server_host;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server_options;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server_url;
mod values;

pub(crate) use self::values::{
    MIGRATE, REAP_AFTER, REAP_AFTER_OPTION, TABLE_PREFIX, check_prefix, check_range, duration,
    escape, flag, invalid, quoted,
};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use self::{
    login::Login,
    server::server_config,
    server_options::{ServerOptions, shared},
};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use self::{
    product::Product, server::ServerConfig, server_host::ServerHost, server_options::SslMode,
};
