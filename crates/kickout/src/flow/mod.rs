//! The handle that an embedder holds, its builder, and its operations.
//!
//! This module is the top layer: no other module imports it.

pub(crate) mod admin;
pub(crate) mod builder;
pub(crate) mod kick_out;
