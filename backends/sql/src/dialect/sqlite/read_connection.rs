//! The connection that reads.
//!
//! A read whose future is not polled any more keeps the connection; later reads then get a new one,
//! so that no read waits for ever.

use std::{
    sync::{
        Arc, Mutex as StdMutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use distlock_core::Clock;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::connection::ConnectionSlot;

/// How long one read waits for the one before it. Most take microseconds.
const READ_WAIT: Duration = Duration::from_secs(1);

/// The shared connection of all reads. A reader has the connection for itself, and its future may
/// stop being polled in the middle of the read. Later readers then go on with a new connection.
#[derive(Debug, Default)]
pub(super) struct ReadConnection {
    // A std mutex: it is held only to look and to swap, never across an await.
    slot: StdMutex<Arc<Mutex<ConnectionSlot>>>,
    closed: AtomicBool,
}

impl ReadConnection {
    /// The connection, until the guard is dropped.
    pub(super) async fn take(&self, clock: &dyn Clock) -> OwnedMutexGuard<ConnectionSlot> {
        loop {
            let slot = Arc::clone(&self.slot());
            if let Ok(free) = Arc::clone(&slot).try_lock_owned() {
                return free;
            }
            tokio::select! {
                biased;
                free = Arc::clone(&slot).lock_owned() => return free,
                () = clock.sleep(READ_WAIT) => self.replace(&slot),
            }
        }
    }

    /// Closes the connection; later reads are refused. A reader that holds the connection for too
    /// long closes it at its own end.
    pub(super) async fn close(&self, clock: &dyn Clock) {
        self.closed.store(true, Relaxed);
        self.take(clock).await.close().await;
    }

    fn replace(&self, stuck: &Arc<Mutex<ConnectionSlot>>) {
        let mut slot = self.slot();
        if Arc::ptr_eq(&slot, stuck) {
            let next = if self.closed.load(Relaxed) {
                ConnectionSlot::closed()
            } else {
                ConnectionSlot::default()
            };
            *slot = Arc::new(Mutex::new(next));
        }
    }

    fn slot(&self) -> MutexGuard<'_, Arc<Mutex<ConnectionSlot>>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
