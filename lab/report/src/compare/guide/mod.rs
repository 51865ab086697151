//! Advice on which store to pick, from the figures of a run.

mod advice;
mod criteria;
mod evidence;
mod fitness;
mod offers;
mod ranking;
mod store_rank;
#[cfg(test)]
mod tests;
mod words;

pub use advice::{Advice, advice};
pub use criteria::{STAY_WITHIN, criteria};
