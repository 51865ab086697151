//! Removes the records of locks that expired long ago, so that their number is bounded.
//!
//! A granted lock starts a turn when one is due. The turn runs as a task of its own beside the
//! caller, so the cycle of the caller costs no operation more. A handle has one turn at a time.
//! Removing a record is safe at any time: it is conditional on the version that was read, and no
//! version of a key comes back, so tokens go on rising.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, Moment, RecordKey, Result};
use tokio::runtime::Handle;

use crate::lock_records::{self, LockRecords, PREFIX};

/// How long the record of an expired lock stays by default.
const REAP_AFTER: Duration = Duration::from_secs(3600);

/// The most records that one turn removes. The next turn comes at once when there were more.
const PER_TURN: u32 = 1024;

#[derive(Debug)]
pub(crate) struct Reaper {
    /// How long the record of an expired lock stays.
    idle: Duration,
    /// The time of the next turn. `None` before the first grant of this handle.
    // A std mutex: it is held to read or change the time, never across an await.
    due: Mutex<Option<Moment>>,
    running: AtomicBool,
}

impl Default for Reaper {
    fn default() -> Self {
        Self::new(REAP_AFTER)
    }
}

impl Reaper {
    pub(crate) fn new(idle: Duration) -> Self {
        Self {
            idle,
            due: Mutex::new(None),
            running: AtomicBool::new(false),
        }
    }

    /// Starts a turn if one is due. Outside of a tokio runtime it does nothing.
    pub(crate) fn take_turn(self: &Arc<Self>, records: &LockRecords, clock: &Arc<dyn Clock>) {
        let now = clock.now();
        {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            // A process that lives for a second takes part; one that does not is spared.
            let next = *due.get_or_insert(now + Duration::from_secs(1).min(self.idle));
            if now < next {
                return;
            }
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        if self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let turn = Turn {
            reaper: Arc::clone(self),
            records: records.clone(),
            clock: Arc::clone(clock),
        };
        runtime.spawn(turn.run());
    }
}

/// One turn. Its drop, also by a runtime that ends, lets the next turn begin.
struct Turn {
    reaper: Arc<Reaper>,
    records: LockRecords,
    clock: Arc<dyn Clock>,
}

impl Turn {
    async fn run(self) {
        let idle = self.reaper.idle;
        let mut pause = idle / 4;
        match reap(&self.records, idle, PER_TURN).await {
            Ok(PER_TURN..) => pause = Duration::ZERO,
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "records of expired locks were removed"),
            Err(error) => tracing::debug!(%error, "the next turn removes expired locks' records"),
        }
        let mut due = self
            .reaper
            .due
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *due = Some(self.clock.now() + pause);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.reaper.running.store(false, Ordering::Release);
    }
}

/// The smallest number of records that one scan asks for.
const PAGE: u32 = 128;

/// Removes up to `limit` records of locks that have been expired for longer than `idle`. Returns
/// how many it removed.
///
/// # Errors
/// Failures of the store, and `Corrupt` after the turn for the first record that cannot be read.
pub(crate) async fn reap(records: &LockRecords, idle: Duration, limit: u32) -> Result<u32> {
    let (mut removed, mut unreadable) = (0, None);
    let mut after: Option<RecordKey> = None;
    while removed < limit {
        let page = records.open()?.scan(PREFIX, after.as_ref(), PAGE).await?;
        for (key, entry) in &page {
            // A record that cannot be read stays: it may be a lock that somebody holds. It must not
            // keep the others from being removed.
            let parsed = lock_records::name(key).and_then(|name| records.parse(&name, entry));
            let current = match parsed {
                Ok(current) => current,
                Err(error) => {
                    unreadable.get_or_insert(error);
                    continue;
                }
            };
            if removed < limit && current.expired_for() > idle {
                removed += u32::from(records.remove(key, current.version).await?);
            }
        }
        if page.len() < PAGE as usize {
            break;
        }
        after = page.into_iter().next_back().map(|(key, _)| key);
    }
    unreadable.map_or(Ok(removed), Err)
}
