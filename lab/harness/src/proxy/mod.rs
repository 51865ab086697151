//! A TCP proxy between a client and its server, with faults on request.
//!
//! The proxy must change or lose bytes only as a fault requires. At the end of a fault that lost
//! bytes of a connection, the proxy resets that connection.

mod fault_proxy;
mod faults;
mod forward;
#[cfg(test)]
mod tests;

pub use self::{fault_proxy::FaultProxy, faults::Direction};
