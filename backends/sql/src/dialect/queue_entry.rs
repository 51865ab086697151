//! The entry of a contender in the store queue.

use std::time::Duration;

use distlock_backend_kit::queue_entry::ContendersAhead;
use distlock_core::{HolderInfo, HolderLabel, LockName, Result};

/// The entry of one contender in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) name: LockName,
    /// A random id, so that a late request about an earlier entry of this process does not change a
    /// later entry.
    pub(crate) id: i64,
    /// The label of the waiter for whom the entry was made, which `inspect` shows.
    pub(crate) holder: HolderLabel,
}

/// The answer of the store to the renewal of one entry: the lock's name, the number of entries
/// ahead, and the microseconds until all of them have ended. `None` for values that no queue has.
pub(crate) fn renewed_entry(
    name: String,
    count: i64,
    ended_in: i64,
) -> Option<(LockName, ContendersAhead)> {
    let ahead = ContendersAhead {
        count: u32::try_from(count).ok()?,
        ended_in: Duration::from_micros(u64::try_from(ended_in).unwrap_or(0)),
    };
    Some((LockName::new(name).ok()?, ahead))
}

/// The number of living entries of a queue and the first of them, from rows that each have that
/// number and one label.
pub(crate) fn shown_queue(
    rows: impl Iterator<Item = Result<(i64, String)>>,
) -> Result<(u32, Vec<HolderInfo>)> {
    let (mut count, mut queue) = (0, Vec::new());
    for row in rows {
        let (entries, label) = row?;
        count = u32::try_from(entries).unwrap_or(u32::MAX);
        queue.push(HolderInfo::new(label));
    }
    Ok((count, queue))
}
