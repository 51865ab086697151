//! One session with the ensemble.

mod context;
pub(crate) mod dial;
mod ended_leases;
pub(crate) mod link;
pub(crate) mod proof;
pub(crate) mod proving;
pub(crate) mod pump;
mod state;
pub(crate) mod tree;

pub(crate) use context::{RequestCount, StoreContext};
pub(crate) use ended_leases::EndedLeases;
pub(crate) use state::{Sent, Session};
