//! Records the commands that clients send.

use std::sync::{Arc, Mutex, PoisonError};

/// The commands of clients, as the server reports them.
#[derive(Debug)]
pub struct RedisMonitor(pub(super) Arc<Mutex<Vec<String>>>);

impl RedisMonitor {
    /// Returns all commands that clients have sent since the start of the monitor, one command on
    /// each line. Commands inside scripts do not count.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A line is `1700000000.000000 [0 127.0.0.1:40000] "GET" "key"`. For a script, the line has
        // `lua` in place of the address.
        let sent = |line: &&String| line.contains(" [") && !line.contains(" lua] ");
        lines.iter().filter(sent).cloned().collect()
    }
}
