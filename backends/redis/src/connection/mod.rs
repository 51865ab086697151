//! Connections to single servers, and what is known of each server.

mod dialer;
mod lasting;
mod link;
mod node;
mod push_listener;
mod server;
mod standing;
#[cfg(feature = "tls")]
mod tls;
mod waiters;

pub(crate) use self::{
    dialer::Dialer,
    lasting::Lasting,
    link::Link,
    node::Node,
    server::Info,
    standing::Standings,
    waiters::{Place, Waiters},
};
