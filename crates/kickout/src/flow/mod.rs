//! The handle that an embedder holds, its builder, and its operations.
//!
//! This module is the top layer: it joins the parts, and no part imports it.

pub(crate) mod accounts;
pub(crate) mod assembly;
pub(crate) mod bans;
pub(crate) mod builder;
pub(crate) mod handle;
pub(crate) mod login;
pub(crate) mod messages;
pub(crate) mod nodes;
pub(crate) mod peers;
