//! Calls between nodes: kicks and deliveries.

pub(crate) mod api;
pub(crate) mod client;
pub(crate) mod kick;
pub(crate) mod route;
