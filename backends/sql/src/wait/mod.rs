//! Waiting for locks: one poller for each process and handle, a listener where the store notifies
//! of releases, and an immediate wake-up inside the process.
//!
//! Polls of one process are shared by all its waiters, so that the load on the store does not grow
//! with their number.

mod contender;
mod listener;
mod pace;
mod poller;
mod queue_entries;
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
    waiter_hint::{RENEW_HINT_BELOW, SEVERAL_PROCESSES, remaining_of_hint},
};
