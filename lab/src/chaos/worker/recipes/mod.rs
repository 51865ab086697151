//! The recipes: uses that people build with a lock, each with a promise of its own.
//!
//! The guarded cache is left out. That recipe documents a number of loads without faults, and no
//! bound under faults.

mod counters;
mod draw;
mod election;
mod fence;
mod once;
mod periodic;
