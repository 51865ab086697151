//! Batches that change something.
//!
//! Acquires and releases share a transaction, and count the rows that they change. Every other kind
//! is one statement that returns the changed rows. Rows are read only to explain what was refused.

mod batch;
mod bind;
mod lock_changes;
mod send;

pub(crate) use self::send::send;
