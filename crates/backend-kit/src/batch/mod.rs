//! Group commit: many operations share one round trip and one disk flush.
//!
//! An operation is sent at once when nothing is in flight, and the future of its caller drives it,
//! without a task, a timer or a queue. Otherwise the operation joins the next batch, which is sent
//! as soon as the batch in flight has its answers. If a caller drives the operation in flight, a
//! task takes that operation over, because the caller may stop polling while others wait.
//!
//! A batch holds operations of one [kind](Executor::Kind), and each [key](Executor::key) once,
//! sorted by key: two statements that lock several rows in different orders can deadlock each
//! other. Every operation gets its own answer. If one operation may have made its whole batch fail
//! ([`Failure::Split`]), the batcher sends each operation of the batch singly. If the store skips
//! one operation, the batcher sends that operation singly. Therefore one blocked row never fails
//! the operations on other rows. The urgent kind (renewals) is sent first.
//!
//! This module owns the order of all operations of one handle. Invariant: a key is never in two
//! batches in flight. If no caller received the answer of an operation that needs an undo, the undo
//! is sent before any later operation with the same key.
//!
//! # Cancel safety
//! [`Batcher::submit`] may be dropped at any time. An operation that was not sent yet is dropped,
//! unless [`Executor::outlives_caller`] returns `true` for it. A task of the batcher drives an
//! operation in flight to its end. If the answer needs an [undo](Executor::undo), the batcher
//! queues the undo ahead of all waiting operations. Other operations of the batch are not affected.

mod batcher;
mod drive;
mod executor;
mod queue;
mod shared;
#[cfg(test)]
mod tests;

pub use batcher::Batcher;
pub use executor::{Executor, Failure, Limits, Reply};
