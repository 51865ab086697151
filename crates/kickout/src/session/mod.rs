//! The sessions of this node: their state, their queues, their end.
//!
//! A session enters the registry before the directory names it. A session leaves the registry
//! before its logout deletes it from the directory.

pub(crate) mod end;
pub(crate) mod handle;
pub(crate) mod live;
pub(crate) mod logout;
pub(crate) mod message;
pub(crate) mod registry;
pub(crate) mod removal;
pub(crate) mod revoke;
