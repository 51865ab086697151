//! Batches that change something: a statement for each row, all in one round trip and one
//! transaction, and at most one read of the rows of refused operations.

mod answers;
mod batch;
mod bulk;
mod bulk_attempt;
mod locked_rows;
mod refused_rows;

pub(crate) use self::{batch::Batch, locked_rows::LockedRows};
