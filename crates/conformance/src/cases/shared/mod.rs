//! Property: a shared lock never has two holders that exclude each other, and serves callers in the
//! order in which they came.

mod entries;
mod permits;
mod processes;
mod readers_writers;
mod steps;

use crate::spec::Spec;

/// Readers and writers.
pub(crate) const READERS_WRITERS: &[Spec] = readers_writers::CASES;

/// Semaphores.
pub(crate) const PERMITS: &[Spec] = permits::CASES;

/// What becomes of the entries of holders that die, give up or lose.
pub(crate) const ENTRIES: &[Spec] = entries::CASES;

/// Holders in processes that are killed or stopped.
pub(crate) const PROCESSES: &[Spec] = processes::CASES;
