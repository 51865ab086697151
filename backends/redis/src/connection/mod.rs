//! Connections to single servers, and what is known of each server.

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
