//! This node's lease, the liveness of other nodes, and the roster.

pub(crate) mod drain;
pub(crate) mod history;
pub(crate) mod lease;
pub(crate) mod lease_keeper;
pub(crate) mod liveness;
pub(crate) mod roster;
pub(crate) mod this_node;
