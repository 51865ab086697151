//! Waiting: one poller per process for all who wait, a listener where the store tells of releases, and an immediate wake-up
//! inside the process.

mod contender;
mod group;
mod hints;
mod listener;
mod pace;
mod places;
mod poller;
mod waiter;
mod waiting;

pub(crate) use self::{
    contender::SqlContender,
    group::Group,
    hints::{RENEW_WANTED, SEVERAL, telling},
};
