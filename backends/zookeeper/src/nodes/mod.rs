//! The nodes of contenders.

pub(crate) mod holder;
mod own;
pub(crate) mod runs;
pub(crate) mod sequence;

pub(crate) use own::{Attempt, Node, Nodes, Status};
