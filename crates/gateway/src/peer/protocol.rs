//! What the two ends of a call agree on.

use std::time::Duration;

/// HTTP/2 pings on an idle connection: a peer that vanished without a word is noticed by this.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(10);
pub(super) const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest message on the wire; a client's frame fits with room to spare.
pub(super) const MAX_MESSAGE: usize = 256 * 1024;
/// The header by which a node says which tokens for calls it reads, and their version. A node that
/// reads other ones is told apart by it; nodes of older versions send none.
pub(super) const CALLS: &str = "distlock-calls";
pub(super) const CALLS_VERSION: &str = "1";
