//! Common programs around a lock, built once.
//!
//! | recipe | purpose |
//! |---|---|
//! | [`cache_guard`] | one caller of all processes loads a hot value into a cache |
//! | [`election`] | one of many candidates leads; its work ends before the next leader's begins |
//! | [`unread`] | unread counters of conversations, and a total that always equals their sum |
//! | [`idempotent`] | an effect that is requested several times happens once |
//! | [`RecordsFence`] | a check before a step on a resource that cannot check tokens itself |
//! | [`shared`] | readers and writers, and permits, over several hosts |
//! | [`Periodic`] | a job that many hosts start runs on one of them, once per period |
//!
//! The recipes need a lock and records only, so each recipe works over every store that has the
//! capabilities which the recipe needs. The module `blocking` (feature `blocking`) has [`Periodic`]
//! and [`election`] for callers without async code.

#[cfg(feature = "blocking")]
pub mod blocking;
pub mod cache_guard;
pub mod election;
mod fence;
pub mod idempotent;
mod periodic;
pub mod shared;
pub mod unread;

pub use fence::RecordsFence;
pub use periodic::{Due, Job, Outcome, Periodic, Ran};
