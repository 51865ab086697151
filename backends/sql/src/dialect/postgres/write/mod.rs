//! Batches that change something: one conditional statement each, and one read to tell the refused ones why.

mod answers;
mod batch;
mod outcome;
mod parameters;

pub(crate) use self::batch::Batch;
