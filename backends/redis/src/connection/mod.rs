//! Connections to single servers, and the epoch of each server, which all handles of a store share.
//!
//! This folder owns the driver's connections. The folder keeps one connection to each server of a
//! handle. The folder never decides which server is the primary (`routing`, `sentinels` and
//! `cluster` decide that).

mod addresses;
mod connector;
mod last_use;
mod open_connection;
mod server;
mod server_epoch;
mod server_info;
mod single_flight;
#[cfg(feature = "tls")]
mod tls;
mod waiter_registry;

pub(crate) use self::{
    connector::Connector,
    last_use::LastUse,
    open_connection::Connection,
    server::Server,
    server_epoch::ServerEpochs,
    server_info::InfoReply,
    single_flight::SingleFlight,
    waiter_registry::{RegisteredWaiter, WaiterRegistry},
};
