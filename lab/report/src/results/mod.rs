//! Samples, and the figures that are computed from them. Nothing here measures.

pub(crate) mod report;
pub(crate) mod sample;
pub(crate) mod statistics;
