//! The entry of a contender in the store queue.

use distlock_core::LockName;

/// The entry of one contender in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) name: LockName,
    /// A random id, so that a late request about an earlier entry of this process does not change a
    /// later entry.
    pub(crate) id: i64,
}
