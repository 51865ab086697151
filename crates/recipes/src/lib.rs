//! What people build with a lock, built once.
//!
//! | recipe | what it is for |
//! |---|---|
//! | [`cache_guard`] | a cache whose hot values one caller of the fleet loads |
//! | [`election`] | of many candidates one leads, and its work is over before the next one's begins |
//! | [`unread`] | unread counters of conversations and their total, which never disagree |
//! | [`idempotent`] | an effect that is asked for several times, and happens once |
//! | [`RecordsFence`] | a gate for steps whose resource cannot check tokens itself |
//! | [`Periodic`] | a job that many hosts start runs on one of them, once per period |
//!
//! They need nothing but a lock and records, so each works over every store that can keep its
//! promise.

pub mod cache_guard;
pub mod election;
mod fence;
pub mod idempotent;
mod periodic;
#[cfg(feature = "redis")]
mod redis_connections;
pub mod unread;

pub use fence::RecordsFence;
pub use periodic::{Due, Periodic, Ran};

/// The guide's snippets compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/recipes.md")]
mod guide {}
