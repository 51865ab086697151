//! Redis Cluster: the servers, the slot map, and the epoch of the whole cluster.
//!
//! The map may be stale at any time; a redirect of a server shows that. This folder never sends an
//! operation on a lock.

mod slot_map;
mod state;

pub(crate) use self::{slot_map::SlotMap, state::Cluster};
