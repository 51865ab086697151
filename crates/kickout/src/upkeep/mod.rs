//! Background rounds that mend the directory and the sessions of this node.

pub(crate) mod pull;
pub(crate) mod sweep;
