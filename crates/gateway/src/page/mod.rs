//! The live page of the admin listener: nodes and their leases, the takeovers of all nodes, locks,
//! orders, and two devices to play with.
//!
//! It is rendered here. A script swaps in the part that changes, gives orders by the same requests
//! as everybody else, and plays the two devices. Nothing is loaded from elsewhere. Because a
//! browser cannot be told to send a bearer token for a page, it may show a pass instead.

mod context;
mod render;
mod routes;
mod snapshot;

pub(crate) use context::PageContext;
pub(crate) use routes::routes;
