//! Waiting for locks. Each handle has one poller, and a listener if the store notifies of releases.
//! A release inside this process wakes the waiters of this process at once.
//!
//! All waiters of one process share the polls, so that the load on the store does not grow with the
//! number of waiters.

mod contender;
mod listener;
mod poller;
mod queue_entries;
mod sleep;
mod wait_group;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod wait_groups;
mod wait_state;
mod waiter;
mod waiter_hint;

#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) use self::wait_groups::WaitGroups;
pub(crate) use self::{
    contender::SqlContender,
    wait_group::WaitGroup,
    waiter_hint::{RENEW_HINT_BELOW, remaining_of_hint},
};
#[cfg(feature = "mysql")]
pub(crate) use waiter_hint::SEVERAL_PROCESSES;
