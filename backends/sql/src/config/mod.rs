//! The options of a store, each checked once, before anything is opened.
//!
//! The options of SQLite, which no other dialect shares, are in the dialect's folder.

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod login;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod product;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server_url;
mod values;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use self::login::Login;
pub(crate) use self::values::{
    MIGRATE, REAP_AFTER, REAP_AFTER_OPTION, TABLE_PREFIX, check_prefix, check_range, duration,
    escape, flag, invalid,
};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use self::{
    product::{Product, SslMode},
    server::{ServerConfig, ServerHost},
};
