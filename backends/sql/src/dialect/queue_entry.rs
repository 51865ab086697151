//! The place of a contender in the store queue.

use distlock_core::LockName;

/// The place of one contender in the line of those who wait for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueEntry {
    pub(crate) name: LockName,
    /// Random, so that a late request about an earlier place does not touch a later one.
    pub(crate) waiter: i64,
}
