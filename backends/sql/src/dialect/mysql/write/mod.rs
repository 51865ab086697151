//! Batches that change something: one round trip and one transaction for all rows, and at most one
//! read of the rows of refused operations.

mod answers;
mod batch;
mod locked_rows;
mod refused_rows;
mod request;

pub(crate) use self::{batch::Batch, locked_rows::LockedRows};
