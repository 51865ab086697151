//! What is known of contenders' nodes, without asking the ensemble.

pub(crate) mod known_queues;
mod node;
pub(crate) mod node_data;
pub(crate) mod sequence;
mod session_nodes;

pub(crate) use node::{Node, NodeStatus, token};
pub(crate) use session_nodes::{SessionNodes, UnknownCreation};
