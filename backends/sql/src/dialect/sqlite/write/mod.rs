//! Batches that change something.
//!
//! Acquires and releases share a transaction; their statements report the number of changed rows.
//! Every other kind has one statement that returns the changed rows. Rows are read only if some
//! operation was not carried out.

mod batch;
mod bind;
mod lock_changes;
mod send;

pub(crate) use self::send::send;
