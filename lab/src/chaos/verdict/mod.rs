//! The verdict: reads a history and finds the broken promises.
//!
//! The verdict is pure: it reads no clock and does no input or output. It must never know how a
//! store keeps a promise. A violation that the documentation allows after a fault is matched to
//! that very fault and counted apart.

mod calls;
mod figures;
mod holds;
mod judge;
mod processes;
mod promise;
mod recipes;
mod records;
#[cfg(test)]
mod tests;
mod tokens;
mod waiters;

pub(crate) use self::{
    figures::{Spread, Verdict},
    judge::judge,
    promise::{Limits, Promise, Violation},
};
