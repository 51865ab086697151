//! Calls between nodes: kicks and deliveries.
//!
//! The target of a call compares node, boot and session, so a late call changes nothing else.

pub(crate) mod api;
pub(crate) mod client;
pub(crate) mod kick;
pub(crate) mod route;
