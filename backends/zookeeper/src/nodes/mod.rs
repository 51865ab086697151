//! Local knowledge about the contenders' nodes of one session.
//!
//! This folder owns the order, the data and the state of the nodes. This folder must not send a
//! request to the ensemble, and must not depend on the session.

pub(crate) mod known_queues;
mod node;
pub(crate) mod node_data;
pub(crate) mod sequence;
mod session_nodes;

pub(crate) use node::{Node, NodeStatus, token_from_czxid};
pub(crate) use session_nodes::{SessionNodes, UnknownCreation};
