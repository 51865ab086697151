//! Constants that both ends of a call share.

use std::time::Duration;

/// Period of HTTP/2 pings on an idle connection. They detect a peer that vanished silently.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(10);
pub(super) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest message on the wire; a client's frame fits with room to spare.
pub(super) const MAX_MESSAGE: usize = 256 * 1024;
/// The header by which a node names the version of the call tokens that it reads. It tells a caller
/// that its tokens have another version. Nodes of older versions send no such header.
pub(super) const CALLS_HEADER: &str = "distlock-calls";
pub(super) const CALLS_VERSION: &str = "1";
