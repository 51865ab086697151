//! What differs between databases, behind one private trait.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use distlock_core::{
    Capabilities, Clock, Entry, Epoch, Health, HolderInfo, Lease, LockName, LossReason, OwnerId,
    RecordKey, Result,
    batch::{Failure, Limits, Reply},
};

use crate::{
    op::{Answer, Kind, Op},
    tally::Tally,
    wait::Group,
};

/// One database, with connections of its own.
pub(crate) trait Dialect: fmt::Debug + Send + Sync + Sized + 'static {
    /// The backend's short name.
    const NAME: &'static str;

    /// Whether the store tells of releases, so that polling is only for what was missed.
    const PUSHES: bool = false;

    fn capabilities() -> Capabilities;

    fn clock(&self) -> &Arc<dyn Clock>;

    /// What this process knows about who waits at this store.
    fn group(&self) -> &Arc<Group>;

    /// What was sent, with every dialect that was reopened from the same one.
    fn tally(&self) -> &Tally;

    fn reap_after(&self) -> Duration;

    /// How much of it goes out together, and how much at the same time.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// The kind whose batches it travels in.
    fn batched_as(kind: Kind) -> Kind {
        kind
    }

    /// A second one whose connections are opened on the calling runtime.
    fn reopen(&self) -> impl Future<Output = Result<Self>> + Send;

    /// One conditional statement for a whole batch, and at most one read to tell the refused ones why.
    fn write(
        &self,
        kind: Kind,
        ops: &[Op],
    ) -> impl Future<Output = Result<Vec<Reply<Answer>>, Failure>> + Send;

    /// The rows of these names, in any order; a name without a row is left out.
    fn look(
        &self,
        names: &[LockName],
    ) -> impl Future<Output = Result<Vec<(LockName, Result<LockRow>)>>> + Send;

    /// Marks held rows as wanted by this process for a while; or by several, where another process's mark stands. That one may
    /// hold the lock by now, and does not tell itself: its mark alone would hide who else waits.
    fn want(&self, names: &[LockName], time: Duration) -> impl Future<Output = Result<()>> + Send;

    /// Where the store tells of releases: marks one row as wanted at once, as [`Self::want`] does. Says whether it is held and
    /// marked, so that its release will be told.
    fn arm(&self, _name: &LockName, _time: Duration) -> impl Future<Output = Result<bool>> + Send {
        std::future::ready(Ok(true))
    }

    /// Where the store tells of releases: wakes those who wait, and ends only when the connection is lost.
    fn listen(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }

    /// Takes these places in the lines of those who wait, or renews them for `lease`. Says for each
    /// how many are ahead.
    fn keep_places(
        &self,
        places: &[Place],
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<(LockName, u32)>>> + Send;

    /// Gives places up, and removes those of their lines that have lapsed. Where the store tells of
    /// releases, those behind are told.
    fn leave_lines(&self, places: &[Place]) -> impl Future<Output = Result<()>> + Send;

    /// Removes the places that have lapsed, of every line, and says how many that were.
    fn clear_lines(&self) -> impl Future<Output = Result<u64>> + Send;

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

/// The place of one contender in the line of those who wait for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) name: LockName,
    /// Random, so that a late request about an earlier place does not touch a later one.
    pub(crate) waiter: i64,
}

/// What a force-release leaves in the `meta` of the row that it frees. That column of a free row is
/// otherwise null (or, after a change by hand, what the last holder had), and the next grant
/// overwrites it. Versions that do not know the trace never read it.
pub(crate) const FORCED: &str = "force-released";

/// A row of the lock table, as of now.
#[derive(Clone, Debug)]
pub(crate) struct LockRow {
    /// Who stands in it, also when the lease is over.
    pub(crate) owner: Option<OwnerId>,
    /// Whom it holds back now.
    pub(crate) held: Option<HolderInfo>,
    pub(crate) last_token: distlock_core::FencingToken,
    /// Whether the lease of that token was ended by force, and nobody was granted the lock since.
    pub(crate) forced: bool,
    /// When the lease ends, or when it was freed, as the row says it; `None` when that was before this boot.
    pub(crate) until: Option<i64>,
    /// How long a mark still stands that tells of this process when it waits: its own, or that of several.
    pub(crate) wanted_for: Duration,
}

impl LockRow {
    /// When it becomes free unless it is renewed; zero when it is free.
    pub(crate) fn free_in(&self) -> Duration {
        match &self.held {
            Some(holder) => holder.expires_in.unwrap_or(Duration::MAX),
            None => Duration::ZERO,
        }
    }
}

/// Why a lease that its row does not confirm is lost.
pub(crate) fn why_lost(lease: &Lease, row: Option<&LockRow>, history_changed: bool) -> LossReason {
    match row {
        None if history_changed => LossReason::HistoryChanged,
        None => LossReason::Removed,
        Some(row) => match row.owner {
            None if row.forced && lease.token == Some(row.last_token) => LossReason::ForceReleased,
            None => LossReason::Removed,
            Some(owner) if owner == lease.owner && row.held.is_none() => LossReason::Expired,
            // Also our own identity under another token, or with a ticket that was redeemed already.
            Some(_) => LossReason::TakenOver,
        },
    }
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

/// The smallest text that is above every text that starts with `prefix`; `None` when there is none.
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
        fn a_prefix_bounds_exactly_its_texts(prefix in any::<String>(), text in any::<String>(), tail in any::<String>()) {
            let above = above_prefix(&prefix);
            let within = |text: &str| text >= prefix.as_str() && above.as_deref().is_none_or(|above| text < above);
            let longer = format!("{prefix}{tail}");
            prop_assert!(within(&longer));
            prop_assert_eq!(within(&text), text.starts_with(&prefix));
        }
    }

    #[test]
    fn the_last_code_points_are_carried() {
        assert_eq!(above_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(above_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(above_prefix("\u{10ffff}"), None);
        assert_eq!(above_prefix(""), None);
    }
}
