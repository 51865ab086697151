//! A TCP proxy between a client and its server, with faults on request.
//!
//! The proxy changes or loses bytes only as a fault says. When a fault has lost bytes of a
//! connection, the proxy resets that connection at the end of the fault.

mod fault_proxy;
mod faults;
mod forward;
#[cfg(test)]
mod tests;

pub use self::{fault_proxy::FaultProxy, faults::Direction};
