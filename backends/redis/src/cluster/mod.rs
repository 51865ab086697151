//! Redis Cluster: which primary serves which slot.

mod map;
mod search;
mod state;

pub(crate) use self::{map::Map, state::Cluster};
