//! WaitState: one poller per process for all who wait, a listener where the store tells of releases, and an immediate wake-up
//! inside the process.

mod contender;
mod listener;
mod pace;
mod poller;
mod queue_entries;
mod wait_group;
mod wait_state;
mod waiter;
mod waiter_hint;

pub(crate) use self::{
    contender::SqlContender,
    wait_group::WaitGroup,
    waiter_hint::{RENEW_HINT_BELOW, SEVERAL_PROCESSES, remaining_of_hint},
};
