//! Connections to single servers, and what every handle of a store knows of each server.
//!
//! This folder owns the driver's connections. It keeps one connection for each server of a handle,
//! and it never decides which server is the primary (`routing`, `sentinels` and `cluster` do).

mod connector;
mod open_connection;
mod push_listener;
mod server;
mod server_epoch;
mod server_info;
mod single_flight;
#[cfg(feature = "tls")]
mod tls;
mod waiter_registry;

pub(crate) use self::{
    connector::Connector,
    open_connection::Connection,
    server::Server,
    server_epoch::ServerEpochs,
    server_info::InfoReply,
    single_flight::SingleFlight,
    waiter_registry::{RegisteredWaiter, WaiterRegistry},
};
