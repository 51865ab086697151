//! Constants that both ends of a call share.

use std::time::Duration;

/// Period of HTTP/2 pings on an idle connection. The pings detect a peer that vanished silently.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(10);
pub(super) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest message that is sent; a client's frame always fits.
pub(super) const MAX_MESSAGE: usize = 256 * 1024;
/// The header in which a node names the version of the call tokens that it reads. With this header
/// a caller learns that its tokens have another version.
pub(super) const CALLS_HEADER: &str = "distlock-calls";
pub(super) const CALLS_VERSION: &str = "1";
