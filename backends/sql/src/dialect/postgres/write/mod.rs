//! Batches that change something: one conditional statement each, and at most one read of the rows
//! of refused operations.

mod batch;
mod outcome;
mod parameters;
mod refusal;
mod send;

pub(crate) use self::send::send;
