//! Redis Cluster: which primary serves which slot.

mod map_search;
mod slot_map;
mod state;

pub(crate) use self::{slot_map::SlotMap, state::Cluster};
