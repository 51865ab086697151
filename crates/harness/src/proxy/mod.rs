//! A TCP proxy between a client and its server that breaks on request.

mod fault_proxy;
mod faults;
mod pump;
#[cfg(test)]
mod tests;

pub use self::{fault_proxy::FaultProxy, faults::Direction};
