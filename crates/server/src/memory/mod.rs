//! The lock server's own store: the lock table in memory, with what a crash must not lose in a
//! file.
//!
//! Invariants: a token is granted only below the ceiling that the file holds, so that no later
//! start grants a lower one. Nobody new is granted a lock while a lease of an earlier start may
//! still run. A force-released lock is never restored.

mod ceiling;
mod file;
mod host;
mod proof;
mod recovering;
mod state;
mod token_clock;

pub(crate) use host::{Host, check};
