//! The evidence of one run: the history, and what follows from it.

pub(crate) mod allowances;
pub(crate) mod history;
pub(crate) mod sessions;
