//! ZooKeeper.

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
    setup::{Ports, Setup},
};
