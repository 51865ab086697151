//! The live page of the admin listener: nodes and their leases, the takeovers of all nodes, locks,
//! orders, and two devices for trying a takeover.
//!
//! The node renders the page. A script replaces the part that changes, gives orders by the same
//! requests as the command-line tool, and plays the two devices. The page must never load anything
//! from another origin. A browser cannot be made to send a bearer token for a page, so a browser
//! may show a pass instead.

mod context;
mod render;
mod routes;
mod snapshot;

pub(crate) use context::PageContext;
pub(crate) use routes::routes;
