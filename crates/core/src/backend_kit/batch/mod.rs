//! Group commit: many operations share one round trip and one disk flush.
//!
//! An operation goes out at once when nothing is in flight, driven by its caller's own future: no
//! task, no timer, no queue. Otherwise it joins the next batch, which goes out as soon as the one
//! in flight comes back; then a task takes over what it waits for, so that nobody depends on a
//! caller that has stopped polling.
//!
//! A batch holds one [kind](Executor::Kind) of operation and each [key](Executor::key) once, sorted
//! by key: two unsorted multi-row statements can deadlock each other. Every operation gets an
//! answer of its own. What failed as a whole or was skipped is sent singly, so that one stuck row
//! never takes its neighbours down. The urgent kind (renewals) goes first.
//!
//! # Cancel safety
//! [`Batcher::submit`] may be dropped at any time. What was not sent yet is forgotten (or still
//! sent, where the executor [says so](Executor::outlives_caller)); what was sent is seen to its end
//! by a task of the batcher, and what it brought is [undone](Executor::undo) before anything goes
//! out that was asked for later. Neighbours in the batch notice nothing.

mod batcher;
mod drive;
mod executor;
mod handout;
mod queue;
mod shared;
#[cfg(test)]
mod tests;

pub use batcher::Batcher;
pub use executor::{Executor, Failure, Limits, Reply};
