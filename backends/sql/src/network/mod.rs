//! Connections to the servers of a URL.
//!
//! The module owns the choice of the server and of its address, and the age from which an open
//! connection is tested before its next use. It never decides whether a server is the primary: the
//! dialect's attempt to open a session does.

mod bridge;
mod servers;

use std::time::Duration;

pub(crate) use self::{
    bridge::Route,
    servers::{Candidate, Servers},
};

/// A connection that was not tested for longer than this is tested before its next use. Firewalls
/// and load balancers forget idle connections, often without notice; a request on such a connection
/// would end with an unknown outcome. A primary may have become a replica in the meantime: then
/// reads on its open connections are stale.
pub(crate) const TEST_AFTER: Duration = Duration::from_secs(10);

/// The time limit of that test, which takes one round trip. A connection without an answer is
/// replaced. A healthy link between continents passes. A dead connection may cost a request 0.5 s,
/// and the new connection needs the rest of that.
pub(crate) const TEST_LIMIT: Duration = Duration::from_millis(300);
