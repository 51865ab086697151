//! A private ZooKeeper ensemble, whose servers can be killed, paused and restarted one by one.

mod access;
mod administration;
mod ensemble;
mod installation;
mod launch;
mod session;
mod setup;
#[cfg(test)]
mod tests;

pub use self::{
    ensemble::ZooKeeper,
    session::Owner,
    setup::{Ports, Setup},
};
