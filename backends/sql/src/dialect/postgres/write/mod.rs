//! Batches that change something: one conditional statement each, and at most one read of the rows
//! of refused operations.

mod batch;
mod request;

pub(crate) use self::batch::send;
