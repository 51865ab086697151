//! What people build with a lock, built once.
//!
//! | recipe | what it is for |
//! |---|---|
//! | [`unread`] | unread counters of conversations and their total, which never disagree |
//! | [`Periodic`] | a job that many hosts start runs on one of them, once per period |
//!
//! They need nothing but a lock and records, so each works over every store that can keep its
//! promise.

mod periodic;
pub mod unread;

pub use periodic::{Due, Periodic, Ran};

/// The guide's snippets compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/recipes.md")]
mod guide {}
