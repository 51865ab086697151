//! Connections to single servers, and what is known of each server.

mod lasting;
mod link;
mod node;
mod server;
mod standing;
#[cfg(feature = "tls")]
mod tls;
mod waiters;

pub(crate) use self::{
    lasting::Lasting,
    link::{Dialer, Link},
    node::Node,
    server::Info,
    standing::Standings,
    waiters::{IN_VAIN, Place, UNTOLD, Waiters},
};
