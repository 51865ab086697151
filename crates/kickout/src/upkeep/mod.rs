//! Background rounds that mend the directory and the sessions of this node.

pub(crate) mod reconcile;
pub(crate) mod sweep;
