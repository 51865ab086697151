//! Operations by an administrator: look-ups and kicks.
//!
//! These parts read the directory and end sessions through it. These parts never decide about a
//! login.

pub(crate) mod operations;
pub(crate) mod view;
