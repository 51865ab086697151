//! The connection that reads.

use std::{
    sync::{
        Arc, Mutex as StdMutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use distlock_core::Clock;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::connection::Link;

/// How long one read waits for the one before it. Most take microseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whoever reads has the connection for itself, and may stand still in the middle of it for as long as it likes: what nobody
/// polls does not go on. Others then go on with a connection of their own.
#[derive(Debug, Default)]
pub(super) struct Reader {
    // A std mutex: held to look and to swap only.
    link: StdMutex<Arc<Mutex<Link>>>,
    closed: AtomicBool,
}

impl Reader {
    /// The connection, until the guard is dropped.
    pub(super) async fn take(&self, clock: &dyn Clock) -> OwnedMutexGuard<Link> {
        loop {
            let link = Arc::clone(&self.link());
            if let Ok(free) = Arc::clone(&link).try_lock_owned() {
                return free;
            }
            tokio::select! {
                biased;
                free = Arc::clone(&link).lock_owned() => return free,
                () = clock.sleep(PATIENCE) => self.replace(&link),
            }
        }
    }

    /// What is asked for after this is refused. Whoever has the connection for too long closes it in the end.
    pub(super) async fn close(&self, clock: &dyn Clock) {
        self.closed.store(true, Relaxed);
        self.take(clock).await.close().await;
    }

    fn replace(&self, stuck: &Arc<Mutex<Link>>) {
        let mut link = self.link();
        if Arc::ptr_eq(&link, stuck) {
            let next = if self.closed.load(Relaxed) {
                Link::closed()
            } else {
                Link::default()
            };
            *link = Arc::new(Mutex::new(next));
        }
    }

    fn link(&self) -> MutexGuard<'_, Arc<Mutex<Link>>> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
