//! The checker: reads a history and says which promises were broken.
//!
//! It is pure: no clock, no input or output. It knows the promises, and nothing of how any store
//! keeps them. A violation that the documentation allows after a fault is matched to that very
//! fault and counted apart.

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
