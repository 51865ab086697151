//! The handle that an embedder holds, its builder, and its operations.
//!
//! This module is the top layer: no other module imports it.

pub(crate) mod accounts;
pub(crate) mod bans;
pub(crate) mod builder;
pub(crate) mod handle;
pub(crate) mod login;
pub(crate) mod messages;
pub(crate) mod nodes;
pub(crate) mod peers;
