//! The contenders' nodes of one session, as far as they are known without a request to the
//! ensemble.
//!
//! This folder owns the order, the data and the state of the nodes. It must not send a request or
//! depend on the session.

pub(crate) mod known_queues;
mod node;
pub(crate) mod node_data;
pub(crate) mod sequence;
mod session_nodes;

pub(crate) use node::{Node, NodeStatus, token_from_czxid};
pub(crate) use session_nodes::{SessionNodes, UnknownCreation};
