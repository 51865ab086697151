//! This node among the others: its lease, its drain, the liveness of other nodes, and the roster.
//!
//! A node that cannot renew its lease stops serving before another node may count it as dead.

pub(crate) mod drain;
pub(crate) mod history;
pub(crate) mod lease;
pub(crate) mod lease_keeper;
pub(crate) mod liveness;
pub(crate) mod roster;
pub(crate) mod this_node;
