//! A TCP proxy between a client and its server, with faults on request.
//!
//! It never changes a byte unless a fault says so, and a connection that lost bytes is always reset
//! in the end.

mod fault_proxy;
mod faults;
mod forward;
#[cfg(test)]
mod tests;

pub use self::{fault_proxy::FaultProxy, faults::Direction};
