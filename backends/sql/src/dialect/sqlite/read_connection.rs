//! The connection for reads.
//!
//! A caller can keep the future of a read without polling the future. Such a read keeps its
//! connection, and later reads get a new connection, so that no read waits for ever.

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

/// The longest wait of a read for the read before it. Most reads take microseconds.
const READ_WAIT: Duration = Duration::from_secs(1);

/// The connection of all reads. Only one read uses the connection at a time. If that read does not
/// end within [`READ_WAIT`], later reads use a new connection.
#[derive(Debug, Default)]
pub(super) struct ReadConnection {
    // A std mutex: no caller holds this mutex across an await.
    slot: StdMutex<Arc<Mutex<ConnectionSlot>>>,
    closed: AtomicBool,
}

impl ReadConnection {
    /// Waits for the connection. The caller has the connection until the guard is dropped.
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

    /// Closes the connection, and refuses later reads. If a read keeps the connection for longer
    /// than [`READ_WAIT`], that connection closes when the read ends.
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
