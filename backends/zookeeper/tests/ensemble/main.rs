//! The backend on real servers: on its own, beside others, and with every fault they can have.
//!
//! Each test starts its own servers, so what can share them is one test.
#![expect(clippy::print_stderr, reason = "a random test names its seed")]

mod access;
mod basics;
mod containers;
mod crowds;
mod cuts;
mod deletions;
mod deposed;
mod fence;
mod leftovers;
mod lines;
mod marks;
mod neighbours;
mod queue;
mod rig;
mod servers;
mod sessions;
mod settings;
mod storm;
mod tap;
mod trust;
