//! The contenders' nodes of one session, as far as they are known without asking the ensemble.
//!
//! This folder owns names, order, data and state of the nodes. It sends no request and knows no
//! session.

pub(crate) mod known_queues;
mod node;
pub(crate) mod node_data;
pub(crate) mod sequence;
mod session_nodes;

pub(crate) use node::{Node, NodeStatus, token};
pub(crate) use session_nodes::{SessionNodes, UnknownCreation};
