//! The backend on real servers: alone, beside other recipes, and under faults.
//!
//! Each test starts its own servers. Cases that can share servers are one test, because a start
//! takes seconds.
#![expect(clippy::print_stderr, reason = "a random test names its seed")]

mod access;
mod basics;
mod cancellations;
mod clean_up;
mod deposed;
mod fence;
mod fixtures;
mod idle;
mod many_waiters;
mod other_recipes;
mod partitions;
mod protocol_proxy;
mod queue;
mod servers;
mod sessions;
mod settings;
mod standing_still;
mod trust;
mod wire;
