//! The evidence of one run: the history, and the facts that follow from it.
//!
//! Nothing here adds to the report.

pub(crate) mod allowances;
pub(crate) mod history;
pub(crate) mod sessions;
