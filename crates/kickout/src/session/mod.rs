//! The sessions of this node.

pub(crate) mod end;
pub(crate) mod handle;
pub(crate) mod live;
pub(crate) mod logout;
pub(crate) mod message;
pub(crate) mod registry;
pub(crate) mod removal;
pub(crate) mod revoke;
