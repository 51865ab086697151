//! Batches that change something: one round trip and one transaction for all rows, and at most one
//! read of the rows of refused operations.

mod batch;
mod request;

pub(crate) use self::batch::{Batch, LockedRows};
