//! Passes the server's pushes on to the waiters of this process.
//!
//! The driver's task for the connection owns the listener. When the listener is dropped, for
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
    /// Set when the connection broke, and never reset.
    pub(super) broken: AtomicBool,
    /// Whether the attempt to connect succeeded. Then waiters may rely on this connection's pushes.
    pub(super) used: AtomicBool,
}

/// Receives the server's pushes. The listener is dropped together with the driver's task. When a
/// runtime is dropped, that drop is the only sign: no disconnection is reported, and no more pushes
/// arrive.
pub(super) struct PushListener {
    pub(super) state: Arc<ConnectionState>,
    pub(super) waiters: Arc<WaiterRegistry>,
}

impl AsyncPushSender for PushListener {
    // The driver calls this function in its own task, so the function must not block.
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => self.waiters.keys_changed(&push.data),
            // After this push the driver's task ends and drops the listener.
            PushKind::Disconnection => self.state.broken.store(true, Ordering::Release),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for PushListener {
    fn drop(&mut self) {
        self.state.broken.store(true, Ordering::Release);
        // The connection may have lost a push, so its waiters must look at their locks. No waiter
        // relies on an attempt to connect that failed, so such an attempt wakes nobody.
        if self.state.used.load(Ordering::Acquire) {
            self.waiters.wake_all();
        }
    }
}
