//! Waiting for locks: which names this process waits for, and when it asks again. A release inside
//! this process wakes the waiters of this process at once.
//!
//! All waiters of one process share the polls, so that the load on the store does not grow with the
//! number of waiters.

pub(crate) mod sleep;
pub(crate) mod wait_group;
pub(crate) mod wait_state;

#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) use self::wait_group::WaitGroups;
pub(crate) use self::wait_group::{HINT_LIFETIME, RENEW_HINT_BELOW, WaitGroup, remaining_of_hint};
#[cfg(feature = "mysql")]
pub(crate) use wait_group::SEVERAL_PROCESSES;
