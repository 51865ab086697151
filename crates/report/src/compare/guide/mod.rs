//! Which store to pick, from what was measured.

mod advice;
#[cfg(test)]
mod tests;

pub use advice::{Advice, STAY_WITHIN, advice, criteria};
