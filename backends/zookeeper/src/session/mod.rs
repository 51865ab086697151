//! One session with the ensemble.

pub(crate) mod proof;
mod proving;
pub(crate) mod pump;
mod state;

pub(crate) use state::{Sent, Session, acls, lock, probe};
