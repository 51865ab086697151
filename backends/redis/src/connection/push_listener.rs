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

use crate::connection::waiters::Waiters;

/// What a link and the driver's task for it tell each other.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Set once and for ever when it broke.
    pub(super) broken: AtomicBool,
    /// Whether a link came of it, on which somebody may have been promised a push.
    pub(super) used: AtomicBool,
}

/// Hears the server's pushes, and lives exactly as long as the driver's task: nobody says goodbye when a runtime is dropped,
/// and no push arrives any more.
pub(super) struct Ear {
    pub(super) line: Arc<Line>,
    pub(super) waiters: Arc<Waiters>,
}

impl AsyncPushSender for Ear {
    // It must not wait for anything.
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => self.waiters.invalidated(&push.data),
            // The task ends, and this with it.
            PushKind::Disconnection => self.line.broken.store(true, Ordering::Release),
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.line.broken.store(true, Ordering::Release);
        // Whatever they waited for may have been pushed to nobody. A try to connect that failed promised nothing.
        if self.line.used.load(Ordering::Acquire) {
            self.waiters.wake_all();
        }
    }
}
