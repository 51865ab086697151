//! Passes the server's pushes on to the waiters of this process.
//!
//! The listener lives exactly as long as the driver's task for the connection. When it ends, for
//! whatever reason, the connection is broken and every waiter is woken.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use distlock_core::Result;
use redis::{
    PushInfo, PushKind,
    aio::{AsyncPushSender, SendError},
};

use crate::connection::waiter_registry::WaiterRegistry;

/// State that a connection and the driver's task for it share.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    /// Set when the connection broke. It is never reset.
    pub(super) broken: AtomicBool,
    /// Whether the attempt to connect succeeded, so that waiters may rely on this connection's
    /// pushes.
    pub(super) used: AtomicBool,
}

/// Receives the server's pushes. It is dropped together with the driver's task. That is the only
/// sign when a runtime is dropped: no disconnection is reported then, and no push arrives any more.
pub(super) struct PushListener {
    pub(super) state: Arc<ConnectionState>,
    pub(super) waiters: Arc<WaiterRegistry>,
}

impl AsyncPushSender for PushListener {
    // The driver calls this in its own task, so it must not block.
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => self.waiters.keys_changed(&push.data),
            // The driver's task ends after this, and drops the listener.
            PushKind::Disconnection => self.state.broken.store(true, Ordering::Release),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for PushListener {
    fn drop(&mut self) {
        self.state.broken.store(true, Ordering::Release);
        // A push may have been lost with the connection. An attempt to connect that failed has no
        // waiters that rely on it, so it wakes nobody.
        if self.state.used.load(Ordering::Acquire) {
            self.waiters.wake_all();
        }
    }
}
