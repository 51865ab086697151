//! The keeper thread, which renews leases, watches deadlines, and cleans up after callers that
//! dropped their futures.

mod connection;
mod jobs;
mod renew;
mod schedule;
mod shared;
mod thread;

pub(crate) use jobs::Spawn;
pub(crate) use renew::renew_for_caller;
pub(crate) use thread::Keeper;
