//! Batches that change something.
//!
//! Acquires and releases share a transaction; their statements report the number of changed rows.
//! Every other kind has one statement that returns the changed rows. Rows are read only if some
//! operation was not carried out.

mod batch;
mod lock_changes;
mod request;

pub(crate) use self::batch::send;
