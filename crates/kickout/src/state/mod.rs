//! The parts of a node's state, and the traits that an embedder implements.
//!
//! Each part keeps its own rules, and asks no store and no other node except through what it is
//! given. No part knows the node.

pub(crate) mod admission;
pub(crate) mod api;
pub(crate) mod changes;
pub(crate) mod events;
pub(crate) mod incarnation;
pub(crate) mod live_session;
pub(crate) mod login_queue;
pub(crate) mod message;
pub(crate) mod peers;
pub(crate) mod registry;
