//! Runs workloads on subjects and takes samples. Nothing here computes a figure from the samples.

pub(crate) mod counting;
pub(crate) mod engine;
pub(crate) mod locker;
pub(crate) mod machine;
mod round;
pub(crate) mod subject;
