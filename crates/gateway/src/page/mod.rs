//! The live page, a web page of the admin listener. The page shows nodes and their leases, the
//! takeovers of all nodes, locks, lists of sessions and bans, and the requests of administrators.
//! The page also has two simulated devices, with which a person can try a takeover.
//!
//! The node renders the page. The page's script reloads the part that changes, sends the same
//! requests to the node as the command-line tool, and logs in as each of the two simulated
//! devices. The page must never load anything from another origin. A browser sends no bearer token
//! when a person opens a page, so the node also accepts a pass: a cookie, and for requests of the
//! script also a header.

mod render;
mod routes;
mod snapshot;

pub(crate) use routes::{PageContext, routes};
