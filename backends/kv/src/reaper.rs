//! Removes the records of locks that expired long ago, so that their number is bounded.
//!
//! A grant starts a reap task when one is due. The task runs beside the caller, so it adds no
//! operation to the caller's acquire. A handle runs one reap task at a time. Removing an expired
//! record is always safe: the delete is conditional on the version that was read, and versions of a
//! key never repeat, so the tokens of that name still rise.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use distlock_core::{Clock, Moment, RecordKey, Result, sync::Mutex};
use tokio::runtime::Handle;

use crate::lock_records::{self, LockRecords, PREFIX};

/// By default, a record stays for this time after its lock has expired.
const REAP_AFTER: Duration = Duration::from_secs(3600);

/// The limit of records that one task removes. A task that reaches the limit makes the next one due
/// at once.
const MAX_PER_TASK: u32 = 1024;

#[derive(Debug)]
pub(crate) struct Reaper {
    /// A record stays for this time after its lock has expired.
    idle: Duration,
    /// The time at which the next task is due; `None` before the first grant of this handle.
    // A blocking mutex: it is held to read or change the time, never across an await.
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

    /// Starts a reap task if one is due. Does nothing outside a tokio runtime.
    pub(crate) fn start_if_due(self: &Arc<Self>, records: &LockRecords, clock: &Arc<dyn Clock>) {
        let now = clock.now();
        {
            let mut due = self.due.lock();
            // The first task is due after one second, so that a process with a shorter life pays
            // nothing.
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
        let task = ReapTask {
            reaper: Arc::clone(self),
            records: records.clone(),
            clock: Arc::clone(clock),
        };
        runtime.spawn(task.run());
    }
}

/// One reap task. The drop of a task permits the next task, even if an ending runtime drops the
/// task unfinished.
struct ReapTask {
    reaper: Arc<Reaper>,
    records: LockRecords,
    clock: Arc<dyn Clock>,
}

impl ReapTask {
    async fn run(self) {
        let idle = self.reaper.idle;
        let mut pause = idle / 4;
        match reap(&self.records, idle, MAX_PER_TASK).await {
            Ok(MAX_PER_TASK..) => pause = Duration::ZERO,
            Ok(0) => {}
            Ok(removed) => tracing::debug!(removed, "records of expired locks were removed"),
            Err(error) => tracing::debug!(%error, "records of expired locks were not removed"),
        }
        let mut due = self.reaper.due.lock();
        *due = Some(self.clock.now() + pause);
    }
}

impl Drop for ReapTask {
    fn drop(&mut self) {
        self.reaper.running.store(false, Ordering::Release);
    }
}

/// The number of records that one scan requests.
const PAGE: u32 = 128;

/// Removes up to `limit` records of locks that have been expired for longer than `idle`. Returns
/// the number of removed records.
///
/// # Errors
/// Failures of the store. `Corrupt` for the first unreadable record, after all others were
/// examined.
pub(crate) async fn reap(records: &LockRecords, idle: Duration, limit: u32) -> Result<u32> {
    let (mut removed, mut unreadable) = (0, None);
    let mut after: Option<RecordKey> = None;
    while removed < limit {
        let page = records
            .checked_records()?
            .scan(PREFIX, after.as_ref(), PAGE)
            .await?;
        for (key, entry) in &page {
            // An unreadable record stays, because it may belong to a held lock. The scan goes on,
            // so one such record does not protect all records after it.
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
