//! What differs between databases, behind one private trait.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use distlock_core::{
    Capabilities, Clock, Entry, Epoch, Health, LockName, RecordKey, Result,
    batch::{Failure, Limits, Reply},
};

use super::{lock_row::LockRow, queue_entry::QueueEntry};
use crate::{
    counters::RequestCounters,
    operation::{Answer, Operation, OperationKind},
    wait::WaitGroup,
};

/// One database, with connections of its own.
pub(crate) trait Dialect: fmt::Debug + Send + Sync + Sized + 'static {
    /// The backend's short name.
    const NAME: &'static str;

    /// Whether the store tells of releases, so that polling is only for what was missed.
    const NOTIFIES: bool = false;

    fn capabilities() -> Capabilities;

    fn clock(&self) -> &Arc<dyn Clock>;

    /// What this process knows about who waits at this store.
    fn wait_group(&self) -> &Arc<WaitGroup>;

    /// What was sent, with every dialect that was reopened from the same one.
    fn counters(&self) -> &RequestCounters;

    fn reap_after(&self) -> Duration;

    /// How much of it goes out together, and how much at the same time.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// The kind whose batches it travels in.
    fn batched_as(kind: OperationKind) -> OperationKind {
        kind
    }

    /// A second one whose connections are opened on the calling runtime.
    fn reopen(&self) -> impl Future<Output = Result<Self>> + Send;

    /// One conditional statement for a whole batch, and at most one read to tell the refused ones why.
    fn write(
        &self,
        kind: OperationKind,
        ops: &[Operation],
    ) -> impl Future<Output = Result<Vec<Reply<Answer>>, Failure>> + Send;

    /// The rows of these names, in any order; a name without a row is left out.
    fn look(
        &self,
        names: &[LockName],
    ) -> impl Future<Output = Result<Vec<(LockName, Result<LockRow>)>>> + Send;

    /// Marks held rows as wanted by this process for a while; or by several, where another process's mark stands. That one may
    /// hold the lock by now, and does not tell itself: its mark alone would hide who else waits.
    fn set_hints(
        &self,
        names: &[LockName],
        time: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Where the store tells of releases: marks one row as wanted at once, as [`Self::want`] does. Says whether it is held and
    /// marked, so that its release will be told.
    fn set_hint(
        &self,
        _name: &LockName,
        _time: Duration,
    ) -> impl Future<Output = Result<bool>> + Send {
        std::future::ready(Ok(true))
    }

    /// Where the store tells of releases: wakes those who wait, and ends only when the connection is lost.
    fn listen(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    /// Takes these places in the lines of those who wait, or renews them for `lease`. Says for each
    /// how many are ahead.
    fn renew_queue_entries(
        &self,
        entries: &[QueueEntry],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<(LockName, u32)>>> + Send;

    /// Gives places up, and removes those of their lines that have lapsed. Where the store tells of
    /// releases, those behind are told.
    fn leave_queues(&self, entries: &[QueueEntry]) -> impl Future<Output = Result<()>> + Send;

    /// Removes the places that have lapsed, of every line, and says how many that were.
    fn remove_expired_entries(&self) -> impl Future<Output = Result<u64>> + Send;

    /// Held locks in byte order of their names.
    fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<(LockName, LockRow)>>> + Send;

    /// The name of the store's present history.
    fn epoch(&self) -> impl Future<Output = Result<Epoch>> + Send;

    fn get(&self, keys: &[RecordKey]) -> impl Future<Output = Result<Vec<Option<Entry>>>> + Send;

    fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<(RecordKey, Entry)>>> + Send;

    /// Whether it is this process's turn to reap; then no other gets a turn for `every`.
    fn claim_reaping(&self, every: Duration) -> impl Future<Output = Result<bool>> + Send;

    /// Walks one page of a table and removes what is idle. `None` at the end.
    fn reap_page(
        &self,
        table: Reaped,
        after: Option<String>,
    ) -> impl Future<Output = Result<ReapedPage>> + Send;

    fn health(&self) -> impl Future<Output = Result<Health>> + Send;

    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// A table whose idle rows are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    Locks,
    Records,
}

/// What one step of the reaper did.
#[derive(Debug, Default)]
pub(crate) struct ReapedPage {
    pub(crate) removed: u64,
    /// Where the next page starts; `None` at the end of the table.
    pub(crate) next: Option<String>,
}
