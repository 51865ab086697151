//! A connection to the store that a test can cut, and that can lose replies.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use async_trait::async_trait;
use distlock_conformance::{LockLayer, RecordsLayer};
use distlock_core::{
    Clock, DistLock, Error, ErrorKind, Expect, LockInfo, LockName, RecordKey, Records, Result,
    Store, Written, sync::Mutex,
};
use tokio::sync::Notify;

/// A connection to a store.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    lock: Arc<dyn DistLock>,
    records: Arc<dyn Records>,
    faults: Arc<Faults>,
}

/// The faults that a test injects into a connection.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    cut: AtomicBool,
    /// Number of `sess/` puts that are done and whose replies get lost.
    replies_to_lose: AtomicU32,
    /// If true, the next put of a `sess/` key is done, its reply is lost, and the connection is
    /// cut.
    lose_next_reply: AtomicBool,
    /// If true, the next put of a `sess/` key is done and answered, and the connection is cut.
    answer_next_then_cut: AtomicBool,
    /// Number of `sess/` puts whose requests get lost, so they are not done.
    requests_to_lose: AtomicU32,
    /// Number of `sess/` puts that meet a conflict.
    conflicts_to_cause: AtomicU32,
    /// If true, the next put of a `sess/` key is held back, its outcome is unknown, and the
    /// connection is cut.
    hold_next: AtomicBool,
    held_put: Mutex<Option<(RecordKey, Vec<u8>, Expect)>>,
    /// Locks whose inspection gets no answer.
    unanswered_locks: Mutex<HashSet<String>>,
    /// Keys of records whose puts are refused.
    refused_keys: Mutex<HashSet<String>>,
    /// Number of `sess/` puts that have hung so far.
    hanging: AtomicU32,
    hangs: AtomicBool,
    fail_hanging: Notify,
}

impl Link {
    pub(crate) fn new(lock: Arc<dyn DistLock>, records: Arc<dyn Records>) -> Self {
        Self {
            lock,
            records,
            faults: Arc::default(),
        }
    }

    /// The store behind this connection.
    pub(crate) fn store(self, clock: impl Clock) -> Store {
        Store::with_clock(
            self.clone().into_lock(),
            self.into_records(),
            Arc::new(clock),
        )
    }

    pub(crate) fn faults(&self) -> Arc<Faults> {
        Arc::clone(&self.faults)
    }

    /// Fails while the connection is cut.
    fn check(&self) -> Result<()> {
        if self.faults.cut.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "the link is cut"));
        }
        Ok(())
    }
}

impl Faults {
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    /// Restores the connection. Later puts no longer hang.
    pub(crate) fn heal(&self) {
        self.cut.store(false, Ordering::SeqCst);
        self.hangs.store(false, Ordering::SeqCst);
    }

    pub(crate) fn lose_replies(&self, number: u32) {
        self.replies_to_lose.store(number, Ordering::SeqCst);
    }

    pub(crate) fn lose_requests(&self, number: u32) {
        self.requests_to_lose.store(number, Ordering::SeqCst);
    }

    pub(crate) fn cause_conflicts(&self, number: u32) {
        self.conflicts_to_cause.store(number, Ordering::SeqCst);
    }
}

impl Faults {
    /// Holds back the next put of a `sess/` key, reports an unknown outcome, and cuts the
    /// connection.
    pub(crate) fn hold_next_put(&self) {
        self.hold_next.store(true, Ordering::SeqCst);
    }

    /// Makes the next put of a `sess/` key, loses its reply, and cuts the connection.
    pub(crate) fn lose_next_reply_and_cut(&self) {
        self.lose_next_reply.store(true, Ordering::SeqCst);
    }

    /// Makes and answers the next put of a `sess/` key, and cuts the connection.
    pub(crate) fn answer_next_and_cut(&self) {
        self.answer_next_then_cut.store(true, Ordering::SeqCst);
    }

    /// Refuses puts of this record from now on, like a store in which another client has locked the
    /// row.
    pub(crate) fn refuse_puts_of(&self, key: &str) {
        self.refused_keys.lock().insert(key.to_owned());
    }

    /// Gives no answer to inspections of this lock from now on.
    pub(crate) fn ignore_inspections_of(&self, lock: &str) {
        self.unanswered_locks.lock().insert(lock.to_owned());
    }

    pub(crate) fn accept_puts_of(&self, key: &str) {
        self.refused_keys.lock().remove(key);
    }

    /// Lets puts of `sess/` keys hang from now on.
    pub(crate) fn hang_puts(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// Number of puts that have hung so far.
    pub(crate) fn hanging_puts(&self) -> u32 {
        self.hanging.load(Ordering::SeqCst)
    }

    /// Fails the puts that hang at this moment.
    pub(crate) fn fail_hanging_puts(&self) {
        self.fail_hanging.notify_waiters();
    }

    /// The put that was held back, so that the test can send it to the store later.
    pub(crate) fn take_held_put(&self) -> Option<(RecordKey, Vec<u8>, Expect)> {
        self.held_put.lock().take()
    }
}

/// Decrements a counter unless it is zero. Returns whether it was above zero.
fn use_up_one(counter: &AtomicU32) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
}

fn lost_reply_error() -> Error {
    Error::new(ErrorKind::OutcomeUnknown, "the reply was lost")
}

#[async_trait]
impl LockLayer for Link {
    fn below(&self) -> Arc<dyn DistLock> {
        Arc::clone(&self.lock)
    }

    async fn before(&self, _: &'static str) -> Result<()> {
        self.check()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockInfo> {
        if self.faults.unanswered_locks.lock().contains(name.as_str()) {
            return std::future::pending().await;
        }
        self.lock.inspect(name).await
    }

    async fn close(&self) {}
}

#[async_trait]
impl RecordsLayer for Link {
    fn below(&self) -> &Arc<dyn Records> {
        &self.records
    }

    async fn before(&self) -> Result<()> {
        self.check()
    }

    async fn put(&self, key: &RecordKey, value: &[u8], expect: Expect) -> Result<Written> {
        if !key.as_str().starts_with("sess/") {
            return self.records.put(key, value, expect).await;
        }
        if self.faults.hangs.load(Ordering::SeqCst) {
            let fail_hanging = self.faults.fail_hanging.notified();
            self.faults.hanging.fetch_add(1, Ordering::SeqCst);
            fail_hanging.await;
            return Err(Error::new(ErrorKind::Unavailable, "the store hangs"));
        }
        if self.faults.refused_keys.lock().contains(key.as_str()) {
            return Err(Error::new(ErrorKind::Unavailable, "the row is locked"));
        }
        if self.faults.hold_next.swap(false, Ordering::SeqCst) {
            let put = (key.clone(), value.to_vec(), expect);
            *self.faults.held_put.lock() = Some(put);
            self.faults.cut();
            return Err(lost_reply_error());
        }
        if use_up_one(&self.faults.requests_to_lose) {
            return Err(lost_reply_error());
        }
        if use_up_one(&self.faults.conflicts_to_cause) {
            return Ok(Written::Conflict);
        }
        let written = self.records.put(key, value, expect).await?;
        if self.faults.lose_next_reply.swap(false, Ordering::SeqCst) {
            self.faults.cut();
            return Err(lost_reply_error());
        }
        if self
            .faults
            .answer_next_then_cut
            .swap(false, Ordering::SeqCst)
        {
            self.faults.cut();
        }
        if use_up_one(&self.faults.replies_to_lose) {
            return Err(lost_reply_error());
        }
        Ok(written)
    }
}
