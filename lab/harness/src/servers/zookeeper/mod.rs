//! A private ZooKeeper ensemble, whose servers can be killed, paused and restarted one by one.

mod access;
mod ensemble;
mod launch;
mod session;
#[cfg(test)]
mod tests;

pub use self::{
    ensemble::ZooKeeper,
    launch::{Ports, Setup},
    session::Owner,
};
