//! The commands that clients send.

use std::sync::{Arc, Mutex, PoisonError};

/// What clients ask a server, as it happens.
#[derive(Debug)]
pub struct RedisMonitor(pub(super) Arc<Mutex<Vec<String>>>);

impl RedisMonitor {
    /// Every command that clients have sent since the monitor was started, one line each. What scripts do inside the server
    /// does not count.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // `1700000000.000000 [0 127.0.0.1:40000] "GET" "key"`, with `lua` in the place of the address for scripts.
        let sent = |line: &&String| line.contains(" [") && !line.contains(" lua] ");
        lines.iter().filter(sent).cloned().collect()
    }
}
