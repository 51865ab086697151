//! How the server's pushes reach those who wait.

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

/// What a link and the driver's task for it tell each other.
#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    /// Set once and for ever when it broke.
    pub(super) broken: AtomicBool,
    /// Whether a link came of it, on which somebody may have been promised a push.
    pub(super) used: AtomicBool,
}

/// Hears the server's pushes, and lives exactly as long as the driver's task: nobody says goodbye when a runtime is dropped,
/// and no push arrives any more.
pub(super) struct PushListener {
    pub(super) state: Arc<ConnectionState>,
    pub(super) waiters: Arc<WaiterRegistry>,
}

impl AsyncPushSender for PushListener {
    // It must not wait for anything.
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => self.waiters.keys_changed(&push.data),
            // The task ends, and this with it.
            PushKind::Disconnection => self.state.broken.store(true, Ordering::Release),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for PushListener {
    fn drop(&mut self) {
        self.state.broken.store(true, Ordering::Release);
        // Whatever they waited for may have been pushed to nobody. A try to connect that failed promised nothing.
        if self.state.used.load(Ordering::Acquire) {
            self.waiters.wake_all();
        }
    }
}
