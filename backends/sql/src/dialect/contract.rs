//! The private trait that each database implements.
//!
//! All code outside the dialect folders uses a database only through this trait.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use distlock_backend_kit::{
    batch::{Failure, Limits, Reply},
    operation::{Answer, Operation, OperationKind},
    queue_entry::ContendersAhead,
};
use distlock_core::{
    Capabilities, Clock, Entry, Epoch, Health, HolderInfo, LockName, RecordKey, Result,
};

use crate::{
    counters::RequestCounters,
    rows::{LockRow, QueueEntry},
    wait::WaitGroup,
};

/// The public part of a dialect: the options of its stores.
#[expect(unnameable_types, reason = "callers use the aliases of the store")]
pub trait Configured {
    /// The options of a store.
    type Config: Send;
}

/// One database, with connections of its own.
pub(crate) trait Dialect: Configured + fmt::Debug + Send + Sync + Sized + 'static {
    /// The backend's short name.
    const NAME: &'static str;

    /// Whether the store notifies of releases. If so, a poll only finds a release whose
    /// notification was lost.
    const NOTIFIES: bool = false;

    /// Connects, or opens the file. Creates the tables (and an absent file) where none is there, if
    /// `config` allows that.
    fn open(
        config: Self::Config,
        clock: Arc<dyn Clock>,
    ) -> impl Future<Output = Result<Self>> + Send;

    /// Creates what is missing of the tables, and an absent file. Returns whether something was
    /// missing.
    fn migrate(
        config: Self::Config,
        clock: Arc<dyn Clock>,
    ) -> impl Future<Output = Result<bool>> + Send;

    fn capabilities() -> Capabilities;

    /// The state that all handles of the opened store share.
    fn context(&self) -> &CommonContext;

    /// The largest size of a batch, and the largest number of batches in flight.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// The kind of batch that carries operations of `kind`. A dialect can send several kinds in one
    /// batch.
    fn batched_as(kind: OperationKind) -> OperationKind {
        kind
    }

    /// A second dialect whose connections are opened on the calling runtime.
    fn reopen(&self) -> impl Future<Output = Result<Self>> + Send;

    /// Sends one conditional statement for a whole batch, and at most one read of the rows of
    /// refused operations.
    fn write(
        &self,
        kind: OperationKind,
        ops: &[Operation],
    ) -> impl Future<Output = Result<Vec<Reply<Answer>>, Failure>> + Send;

    /// The rows of these names, in any order. A name without a row is absent from the result.
    fn read_rows(
        &self,
        names: &[LockName],
    ) -> impl Future<Output = Result<Vec<(LockName, Result<LockRow>)>>> + Send;

    /// Sets this process's waiter hint on held rows, with the lifetime `time`. A row that has the
    /// hint of another process gets the hint of several processes instead. The reason: that other
    /// process may hold the lock by now, and a holder ignores its own hint. With that hint alone,
    /// the holder would not learn of this process's waiters.
    fn set_hints(
        &self,
        names: &[LockName],
        time: Duration,
    ) -> impl Future<Output = Result<()>> + Send;

    /// For a store that notifies: sets the hint on one row, by the rules of [`Self::set_hints`].
    /// Returns whether the row is held and has the hint, so that the store will notify of the
    /// release.
    fn set_hint(
        &self,
        _name: &LockName,
        _time: Duration,
    ) -> impl Future<Output = Result<bool>> + Send {
        std::future::ready(Ok(true))
    }

    /// For a store that notifies: wakes waiters on each notification. The future ends only when the
    /// connection is lost.
    fn listen(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    /// Prepares to learn of releases by other processes, before this process takes or renews a
    /// queue entry.
    fn prepare_to_wait(&self) {}

    /// Takes or renews these queue entries, each for `lease`. Returns for each entry the entries
    /// ahead in the same queue.
    fn renew_queue_entries(
        &self,
        entries: &[QueueEntry],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<(LockName, ContendersAhead)>>> + Send;

    /// Gives up queue entries, and removes the expired entries of the same queues. A store that
    /// notifies sends a notification to the contenders behind these entries.
    fn leave_queues(&self, entries: &[QueueEntry]) -> impl Future<Output = Result<()>> + Send;

    /// The number of living entries in the queue of a lock, and the first of them in order, at most
    /// [`SHOWN_ENTRIES`](distlock_backend_kit::queue_entry::SHOWN_ENTRIES).
    fn read_queue(
        &self,
        name: &LockName,
    ) -> impl Future<Output = Result<(u32, Vec<HolderInfo>)>> + Send;

    /// Removes the expired entries of every queue, and returns their number.
    fn remove_expired_entries(&self) -> impl Future<Output = Result<u64>> + Send;

    /// The held locks whose names start with `prefix`, in byte order of their names.
    fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<(LockName, LockRow)>>> + Send;

    /// The epoch: the name of the store's present history.
    fn epoch(&self) -> impl Future<Output = Result<Epoch>> + Send;

    fn get(&self, keys: &[RecordKey]) -> impl Future<Output = Result<Vec<Option<Entry>>>> + Send;

    fn scan(
        &self,
        prefix: &str,
        after: Option<&RecordKey>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<(RecordKey, Entry)>>> + Send;

    /// Claims the next run of the reaper. Returns whether the claim succeeded; if so, no other
    /// process can claim a run for `every`.
    fn claim_reaping(&self, every: Duration) -> impl Future<Output = Result<bool>> + Send;

    /// Reads one page of a table and removes its idle rows.
    fn reap_page(
        &self,
        table: Reaped,
        after: Option<String>,
    ) -> impl Future<Output = Result<ReapedPage>> + Send;

    fn health(&self) -> impl Future<Output = Result<Health>> + Send;

    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// The part of a store's shared state that every dialect has. A dialect and all dialects that were
/// reopened from it share it.
pub(crate) struct CommonContext {
    pub(crate) clock: Arc<dyn Clock>,
    /// The waiters of this process at this store.
    pub(crate) wait_group: Arc<WaitGroup>,
    pub(crate) counters: RequestCounters,
    pub(crate) reap_after: Duration,
}

/// A table whose idle rows are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    Locks,
    Records,
}

/// The outcome of one step of the reaper.
#[derive(Debug, Default)]
pub(crate) struct ReapedPage {
    pub(crate) removed: u64,
    /// The key after which the next page starts; `None` at the end of the table.
    pub(crate) next: Option<String>,
}

/// The number of rows that one step of the reaper reads.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const REAPED_ROWS: u32 = 1000;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl ReapedPage {
    /// The page that consists of `rows`, and the keys of its idle rows. Each element of `rows` is
    /// the key of a row and whether the row is idle.
    pub(crate) fn of(
        rows: impl Iterator<Item = Result<(String, bool)>>,
    ) -> Result<(Self, Vec<String>)> {
        let (mut page, mut idle, mut count) = (Self::default(), Vec::new(), 0);
        for row in rows {
            let (key, is_idle) = row?;
            if is_idle {
                idle.push(key.clone());
            }
            page.next = Some(key);
            count += 1;
        }
        if count < REAPED_ROWS {
            page.next = None;
        }
        Ok((page, idle))
    }
}

/// The smallest text that sorts after every text that starts with `prefix`; `None` when no text
/// does.
pub(crate) fn above_prefix(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = match last {
            // The next code point would be a surrogate.
            '\u{d7ff}' => Some('\u{e000}'),
            last => char::from_u32(u32::from(last) + 1),
        };
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_text_is_in_the_range_exactly_if_it_starts_with_the_prefix(
            prefix in any::<String>(),
            text in any::<String>(),
            tail in any::<String>(),
        ) {
            let above = above_prefix(&prefix);
            let within = |text: &str| {
                text >= prefix.as_str() && above.as_deref().is_none_or(|above| text < above)
            };
            let longer = format!("{prefix}{tail}");
            prop_assert!(within(&longer));
            prop_assert_eq!(within(&text), text.starts_with(&prefix));
        }
    }

    #[test]
    fn a_last_code_point_is_dropped_and_the_one_before_it_is_raised() {
        assert_eq!(above_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(above_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(above_prefix("\u{10ffff}"), None);
        assert_eq!(above_prefix(""), None);
    }
}
