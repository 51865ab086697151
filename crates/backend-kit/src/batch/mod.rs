//! Group commit: many operations share one round trip and one disk flush.
//!
//! An operation is sent at once when nothing is in flight, and its caller's own future drives it:
//! no task, no timer, no queue. Otherwise it joins the next batch, which is sent as soon as the one
//! in flight has its answers. A task then takes over the operation that the queue waits for,
//! because its caller may stop polling.
//!
//! A batch holds operations of one [kind](Executor::Kind), and each [key](Executor::key) once,
//! sorted by key: two multi-row statements that are not sorted can deadlock each other. Every
//! operation gets an answer of its own. After a batch that failed as a whole, its operations are
//! sent singly; so are operations that the store skipped. So one blocked row never fails its
//! neighbours. The urgent kind (renewals) is sent first.
//!
//! This module owns the order of all operations of one handle. Invariant: a key is never in two
//! batches in flight. An answer that no caller received is undone before any later operation.
//!
//! # Cancel safety
//! [`Batcher::submit`] may be dropped at any time. An operation that was not sent yet is dropped,
//! or still sent where the executor [wants that](Executor::outlives_caller). A task of the batcher
//! drives an operation in flight to its end, and [undoes](Executor::undo) its answer before any
//! operation that was submitted later. Other operations of the batch are not affected.

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
