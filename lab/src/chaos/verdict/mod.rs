//! The verdict: reads a history and finds the broken promises.
//!
//! The verdict is pure: the code here reads no clock and does no input or output. The verdict must
//! never know how a store keeps a promise. The documentation allows some violations after a fault.
//! Such a violation is attributed to that fault and counted separately.

mod excuses;
mod holds;
mod judge;
mod order;
mod processes;
mod recipes;
mod records;
#[cfg(test)]
mod tests;
mod tokens;
mod waiters;

pub(crate) use self::judge::{Limits, Promise, Spread, Verdict, Violation, judge};
